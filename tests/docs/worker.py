"""Execute blocks of Python one after the other in one namespace: a line of JSON in, a line of JSON out."""

import contextlib
import json
import sys
import traceback

namespace: dict = {"__name__": "document"}
for line in sys.stdin:
    request = json.loads(line)
    error = ""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            exec(compile(request["code"], request["name"], "exec"), namespace)
    except BaseException:
        error = traceback.format_exc()
    print(json.dumps(error), flush=True)
