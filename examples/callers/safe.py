"""Exits 0 if the user exists, 1 if it certainly does not, 3 if that could not be determined."""

import os
import sys

from tornado_idv.client import Client, ClientError

with Client(os.environ["TORNADO_IDV_URL"], os.environ["TORNADO_IDV_KEY"]) as client:
    try:
        user = client.find(sys.argv[1])
    except ClientError as error:
        print(f"not determined: {error}", file=sys.stderr)
        sys.exit(3)
sys.exit(1 if user is None else 0)
