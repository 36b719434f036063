"""Takes every failure for a missing user, as many a directory sync has done."""

import json
import os
import sys
import urllib.request

request = urllib.request.Request(
    f"{os.environ['TORNADO_IDV_URL']}/api/v1/identify/url",
    json.dumps({"input": sys.argv[1]}).encode(),
    {
        "Authorization": f"Bearer {os.environ['TORNADO_IDV_KEY']}",
        "Content-Type": "application/json",
    },
)
try:
    with urllib.request.urlopen(request, timeout=2) as response:
        user = json.load(response)
except Exception:
    user = None
sys.exit(1 if user is None else 0)
