"""What a site.yaml may name under `publish` and `withhold`."""

PUBLISHABLE = ("style", "text", "model", "result")
"""Profile items; ``model`` lets the site's whole model take part in the outsider's, ``result`` puts it into the job's
result by itself."""

WITHHOLDABLE = ("loss", "scores", "seconds", "memory")
"""What is for the record alone; `federation.message_schema` says which values of a reply each name covers."""
