"""Pointers of Git LFS are recognised by their first line, and other files are not."""

from shared_components.common.git_lfs import is_pointer_file

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"


def test_a_pointer_is_a_small_file_that_begins_so(tmp_path):
    for name, text in (("pointer", POINTER), ("long", POINTER + 2000 * "x"), ("other", "version 1"), ("empty", "")):
        (tmp_path / name).write_text(text)
    found = {name: is_pointer_file(tmp_path / name) for name in ("pointer", "long", "other", "empty", "missing", ".")}
    assert found == {"pointer": True, "long": False, "other": False, "empty": False, "missing": False, ".": False}
