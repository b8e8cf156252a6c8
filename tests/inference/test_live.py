"""Live streams over loopback: interrupted, stalled, and faster than predictions."""

import json
import os
import signal
import threading
import time
from fractions import Fraction
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import StreamRequestHandler, ThreadingTCPServer

import av
import pytest

from shared_components.cli import main
from shared_components.inference import InferenceError, live
from shared_components.inference.frames import FrameStream
from shared_components.inference.live import WAITING, LiveVideo, is_live
from shared_components.inference.video import frames_of, look_at
from tests.inference.conftest import noise, write_video

pytestmark = pytest.mark.slow

FRAMES = 40


@pytest.fixture
def served(tmp_path):
    """Serve an MPEG transport stream; the path selects its behaviour after the first half."""
    data = write_video(tmp_path / "film.ts", noise(FRAMES), rate=25).read_bytes()
    done = threading.Event()

    class Camera(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            self.send_response(200)
            if self.path.startswith("/recording"):
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2])
            if not self.path.startswith("/ends"):
                if not self.path.startswith("/stalls"):
                    self.wfile.write(data[len(data) // 2 :])
                if not self.path.startswith("/recording"):
                    done.wait(20)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Camera)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    done.set()
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def _soon(monkeypatch, tmp_path):
    monkeypatch.setattr(live, "STALL", 1.5)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("how", "sentence"), [("ends", "broke off after "), ("stalls", "sent no data for 1.5 s, after ")]
)
def test_what_came_of_a_stream_that_breaks_off_is_complete(served, model, tmp_path, caplog, how, sentence):
    url = f"{served.replace('://', '://ann:secret@')}/{how}/or-3?token=secret"
    assert main(["segment", url, "--model", str(model()), "--out", "seen", "--masks", "none"]) == 1
    (message,) = [line for line in caplog.messages if sentence in line]
    assert message.startswith(f"{served}/{how}/or-3 {sentence}")
    assert message.endswith("; check its address, and that a player shows it from this machine, and start again")
    record = json.loads((tmp_path / "seen" / "prediction.json").read_text())
    result = look_at(tmp_path / "seen" / "overlay.mp4")
    assert record["complete"] and record["broke_off"] == message and "secret" not in str(record) + caplog.text
    assert FRAMES / 4 < record["frames"] + record["dropped"] < 3 * FRAMES / 4 and result.frames == record["frames"]


def test_the_pixels_shape_of_a_stream_turns_with_the_picture(tmp_path, monkeypatch):
    path = write_video(tmp_path / "a.mp4", noise(2), rotation=90, aspect=Fraction(16, 15))
    monkeypatch.setattr(live, "_opened", lambda source: av.open(path))
    assert LiveVideo("http://camera/1").aspect == Fraction(15, 16) == look_at(path).aspect


def test_a_live_stream_drops_what_waits_longest_and_a_recording_waits(served, tmp_path, caplog):
    fast = LiveVideo(f"{served}/live")
    while not fast.problem:
        time.sleep(0.02)
    frames = list(fast.frames())
    assert [number for number, *_ in frames] == [0, *range(FRAMES - WAITING, FRAMES)]
    assert fast.count == FRAMES and fast.dropped == FRAMES - WAITING - 1
    assert f"{served}/live: {fast.dropped} frames were dropped" in caplog.text

    slow = LiveVideo(f"{served}/recording")
    time.sleep(0.2)
    expected = list(frames_of(look_at(tmp_path / "film.ts")))
    for (number, image, seconds), (n, same, at) in zip(slow.frames(), expected, strict=True):
        assert (number, seconds) == (n, at) and (image == same).all()
    assert not slow.dropped and not slow.problem
    for number, image, seconds in frames[:9]:
        assert (image == expected[number][1]).all() and seconds == expected[number][2]


def test_ctrl_c_completes_the_results_of_a_stream(served, model, tmp_path, monkeypatch):
    monkeypatch.setattr(live, "STALL", 20.0)
    usual = signal.getsignal(signal.SIGINT)

    def interrupt():
        while signal.getsignal(signal.SIGINT) is usual:  # the model is still loading
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    assert main(["segment", f"{served}/live", "--model", str(model()), "--backend", "torch", "--masks", "none"]) == 0
    (out,) = tmp_path.glob("127-0-0-1-*-live-2*-segmented")
    assert json.loads((out / "prediction.json").read_text())["broke_off"] == ""
    assert look_at(out / "overlay.mp4").frames >= 1


def test_rtsp_asks_for_frames_by_tcp():
    """With UDP a firewall would block the frames."""
    media = "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=-\r\nt=0 0\r\nm=video 0 RTP/AVP 96\r\na=rtpmap:96 H264/90000\r\n"
    asked = []

    class Camera(StreamRequestHandler):
        def handle(self):
            while words := list(iter(lambda: self.rfile.readline().decode().strip(), "")):
                asked.append(words)
                if words[0].startswith("SETUP"):
                    return
                number = next(word for word in words if word.startswith("CSeq"))
                body = media if words[0].startswith("DESCRIBE") else ""
                about = f"Content-Type: application/sdp\r\nContent-Length: {len(body)}"
                self.wfile.write(f"RTSP/1.0 200 OK\r\n{number}\r\n{about}\r\n\r\n{body}".encode())

    with ThreadingTCPServer(("127.0.0.1", 0), Camera) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(InferenceError, match="cannot be opened"):
            LiveVideo(f"rtsp://127.0.0.1:{server.server_address[1]}/or-1")
        server.shutdown()
    (transport,) = [line for words in asked if words[0].startswith("SETUP") for line in words if "Transport" in line]
    assert transport.startswith("Transport: RTP/AVP/TCP;")


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("http://user:word@127.0.0.1:1/x", r"http://127.0.0.1:1/x cannot be opened \(Connection refused\); check its "),
        ("udp://127.0.0.1:9", r"udp://127.0.0.1:9 cannot be opened \(no answer for 1.5 s\)"),
        ("file:///etc/hosts", "file:///etc/hosts: unknown protocol; use one of http, "),
        ("http://[::1/x", "has no valid host"),
        ("99", "camera 99 cannot be opened .*; check that it is connected"),
    ],
)
def test_what_is_no_stream_is_one_sentence(source, sentence):
    with pytest.raises(InferenceError, match=f"^(the input URL )?{sentence}"):
        FrameStream(source, height=32, width=64)


def test_a_path_and_a_folder_called_as_a_number_are_no_streams(tmp_path):
    assert is_live("0") and is_live("rtsp://a/b") and not any(map(is_live, ["./0", "a.mp4", tmp_path / "0", "-1"]))
    (tmp_path / "001").mkdir()
    assert not is_live("001") and is_live("1") and is_live("002")
