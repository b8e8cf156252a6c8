"""Networks of sequences: causal convolutions see no future, each layer is a scalar loop, an LSTM reads in order."""

import pytest
import torch

from shared_components.networks.sequences import CausalTcn, Dilated, FeatureLstm


@pytest.fixture
def tcn():
    torch.manual_seed(0)
    return CausalTcn(features=5, out_channels=3, layers=4, maps=6).eval()


def test_a_frame_changes_itself_and_later_frames_alone(tcn):
    sequence = torch.randn(1, 12, 5)
    changed = sequence.clone()
    changed[:, 7] += 1
    differs = (tcn(sequence) != tcn(changed)).any(-1)[:, 0]  # (S, T)
    assert not differs[:, :7].any() and differs[:, 7].all()


def test_every_stage_gives_logits_and_the_second_reads_the_firsts_probabilities(tcn):
    sequence = torch.randn(2, 9, 5)
    first, second = tcn(sequence)
    assert first.shape == second.shape == (2, 9, 3)
    maps = tcn.stages[1](first.softmax(-1).transpose(1, 2))
    torch.testing.assert_close(second, tcn.heads[1](maps).transpose(1, 2))


def test_a_dilated_layer_is_a_loop_over_frames():
    torch.manual_seed(0)
    layer, x = Dilated(2, 3).eval(), torch.randn(1, 2, 10)
    weight, bias = layer.dilated.weight, layer.dilated.bias
    for t in range(10):
        total = bias.clone()
        for tap in range(3):  # the last tap is the frame itself
            if (past := t - 3 * (2 - tap)) >= 0:
                total = total + weight[:, :, tap] @ x[0, :, past]
        expected = x[0, :, t] + layer.mix.weight[:, :, 0] @ total.relu() + layer.mix.bias
        torch.testing.assert_close(layer(x)[0, :, t], expected)


def test_the_defaults_are_the_papers():
    tcn = CausalTcn(features=2048, out_channels=7)
    assert len(tcn.stages) == 2 and [layer.past for layer in tcn.stages[0][1:]] == [2 * 2**i for i in range(9)]
    assert tcn.stages[0][0].out_channels == 64
    lstm = FeatureLstm(features=768, out_channels=2)
    assert lstm.enter.out_features == 512 and (lstm.lstm.hidden_size, lstm.lstm.num_layers) == (256, 2)
    assert lstm.lstm.dropout == lstm.dropout.p == 0.5


def test_the_lstm_is_its_equations_and_its_last_output_is_read():
    torch.manual_seed(0)
    network, sequence = FeatureLstm(features=3, out_channels=2, width=4, hidden=2).eval(), torch.randn(1, 5, 3)
    x = list(network.enter(sequence)[0])
    for layer in range(2):
        weights = [getattr(network.lstm, f"{name}_l{layer}") for name in ("weight_ih", "weight_hh")]
        biases = [getattr(network.lstm, f"{name}_l{layer}") for name in ("bias_ih", "bias_hh")]
        h, c = torch.zeros(2), torch.zeros(2)
        for t, given in enumerate(x):
            i, f, g, o = (weights[0] @ given + biases[0] + weights[1] @ h + biases[1]).split(2)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            x[t] = h
    torch.testing.assert_close(network(sequence)[0], network.head(x[-1]))
