"""`evidence.benchmarks.regions`: a round with nodes beside a flat round."""

from evidence.benchmarks.regions import compare


def test_four_sites_in_two_regions_give_a_row_and_equal_weights(tmp_path):
    sites, regions, flat, with_nodes, *_ = compare(4, tmp_path).split()  # compares the weights itself
    assert (sites, regions) == ("4", "2") and float(flat) > 0 and float(with_nodes) > 0
