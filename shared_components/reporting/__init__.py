"""Tables, charts, pictures and pages of a run or of several."""
