#!/bin/sh
# Takes every failure for a missing user: curl exits with another code than 0 for each of them.
curl --silent --fail --output /dev/null --max-time 2 \
    --header "Authorization: Bearer $TORNADO_IDV_KEY" --json "{\"input\": \"$1\"}" \
    "$TORNADO_IDV_URL/api/v1/identify/url" || exit 1
