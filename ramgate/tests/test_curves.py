"""Curves of memory, and whether they fit beside each other."""
from ramgate.curves import Forecast, Recorder, span


def recorded(points):
    recorder = Recorder()
    for age, memory in points:
        recorder.add(age, memory)
    return recorder.curve


def test_peaks_are_staggered_where_the_tails_fit():
    curve = recorded([(second / 10, 100 if 10 < second < 20 else 30) for second in range(100)])
    forecast = Forecast(10)
    forecast.add(forecast.steps(curve, 10))
    assert not forecast.fits(forecast.steps(curve, 10), 150)
    later = Forecast(10)
    later.add(later.steps(curve, 10, age=3.0))
    assert later.fits(later.steps(curve, 10), 150)


def test_spans_grow_with_age():
    assert span(0) == 0 and span(0.2) == 1
    assert span(3600) < 140
