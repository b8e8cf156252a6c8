"""Batches that threads make ahead of their use are bit-equal to batches without threads."""

import threading
from itertools import count

import pytest
import torch

from shared_components.data.dataset import SampleDataset, batches
from shared_components.data.prefetch import AHEAD, Plan, prefetched
from shared_components.data.samples import samples
from shared_components.data.site import SiteError
from shared_components.data.site_file import load_site


def stream(site, workers, *, step=lambda generator: None, **options):
    dataset = SampleDataset(samples(site, "train"), height=32, width=40, site=site)
    generator = torch.Generator().manual_seed(4)
    drawn = []
    options = {"augment": True, "colour": 0.5, "rotation": 20, **options}
    for batch in batches(dataset, batch_size=3, iterations=6, generator=generator, workers=workers, **options):
        drawn += [batch["image"], batch["label"], step(generator)]
    return [*drawn, generator.get_state()]


def numbers(workers, *, steps=6, step=lambda generator: None):
    """Return random numbers of batches of two items, and the places at which each batch was drawn."""
    places, generator = [], torch.Generator().manual_seed(1)

    def draw(place, generator):
        places.append(place)
        return Plan(torch.rand(2, generator=generator).tolist(), place, place + 1)

    made = []
    for batch in prefetched(draw, lambda item: item * 2, place=0, count=steps, generator=generator, workers=workers):
        made.append((batch, step(generator)))
    return made, places


def drawing(*steps):
    """Return a step that draws from the generator in these steps."""
    numbers = count()
    return lambda generator: float(torch.rand((), generator=generator)) if next(numbers) in steps else None


@pytest.mark.parametrize("steps", [(), range(6), (2, 3)], ids=["no step", "every step", "some steps"])
def test_any_number_of_workers_gives_the_same_batches_if_steps_draw_from_the_generator_too(make_site, steps):
    site = load_site(make_site(frames=5))
    expected = stream(site, 0, step=drawing(*steps))
    for workers in (1, 4):
        for ours, theirs in zip(stream(site, workers, step=drawing(*steps)), expected, strict=True):
            assert torch.equal(ours, theirs) if isinstance(ours, torch.Tensor) else ours == theirs


def test_batches_are_drawn_ahead_until_a_step_draws_and_never_beyond_the_last():
    plain, places = numbers(0)
    assert places == [0, 1, 2, 3, 4, 5] and numbers(2) == (plain, places)

    made, places = numbers(2, step=drawing(*range(6)))
    assert made == numbers(0, step=drawing(*range(6)))[0]
    assert places == [*range(1 + AHEAD), 1, 2, 3, 4, 5]


def test_threads_make_the_next_batches_while_a_step_computes():
    ahead, generator = threading.Event(), torch.Generator().manual_seed(0)

    def make(place):
        if place == AHEAD:
            ahead.set()
        return place

    stream = prefetched(
        lambda place, _: Plan([place], None, place + 1), make, place=0, count=5, generator=generator, workers=1
    )
    assert next(stream) == ([0], None)
    assert ahead.wait(10)
    stream.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]


def test_a_missing_frame_is_reported_when_its_batch_is_due(make_site):
    site = load_site(make_site(frames=5))
    dataset = SampleDataset(samples(site, "train"), height=32, width=40, site=site)
    dataset.samples[2].images[-1].unlink()
    with pytest.raises(SiteError, match=str(dataset.samples[2].images[-1])):
        list(batches(dataset, batch_size=5, iterations=2, generator=torch.Generator(), augment=False, workers=2))
