#!/bin/sh
# Exits 0 if the user exists, 1 if it certainly does not, 3 if that could not be determined.
response=$(curl --silent --show-error --max-time 2 --write-out '\n%{http_code}' \
    --header "Authorization: Bearer $TORNADO_IDV_KEY" --json "{\"input\": \"$1\"}" \
    "$TORNADO_IDV_URL/api/v1/identify/url") || exit 3
case $response in
*'"status":"ok"'*'
200') exit 0 ;;
*'"code":"not_found"'*'
404') exit 1 ;;
*) exit 3 ;;
esac
