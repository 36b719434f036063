"""A key and a certificate for tests of TLS."""

from __future__ import annotations

import ssl
from pathlib import Path

# Made for these tests: for 127.0.0.1, signed by itself, good for a hundred years.
SELF_SIGNED = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgb4EvZPKQcrvjqyvf
LRu7dnm5txzN3+as5+9evzj7+jGhRANCAAQKjhRBWrtcm05wW7Vp8cRwutHNSV9H
0djPYK4/ksHAdtmb8WgLIO+WFFGaMEW1TMEpLmmx+gFMUDO0BMDXDav/
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBkTCCATagAwIBAgIUSRGS1f3Wrb9GwKik3JSBz7suxmYwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyMDA5MzAyMVoYDzIxMjYxMDI3
MDkzMDIxWjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAAQKjhRBWrtcm05wW7Vp8cRwutHNSV9H0djPYK4/ksHAdtmb8WgLIO+W
FFGaMEW1TMEpLmmx+gFMUDO0BMDXDav/o2QwYjAdBgNVHQ4EFgQUAvGQW83pKvBL
PL+GYpDDp0yD1lUwHwYDVR0jBBgwFoAUAvGQW83pKvBLPL+GYpDDp0yD1lUwDwYD
VR0TAQH/BAUwAwEB/zAPBgNVHREECDAGhwR/AAABMAoGCCqGSM49BAMCA0kAMEYC
IQDLzdwuy0SChOWoF3VOJ+UYdFozLrj5thrlqJafR7YwYAIhAPGfIBnfoG24vWvu
dnjStieooz+dumUJ1wnlmtfPCH2k
-----END CERTIFICATE-----
"""

OTHER_KEY = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgqKd/0yUpq4/iPM9Q
PqJReaxZG9SP6a8UAUI7gWBTxrOhRANCAAR/DlXFJKO666k4bnv7uxklPUPZ5Shj
gHnyYNKxPW79LuuKBEgr3sOeBDT8b5r1PMQj5Y0Gxlw10RyvOftiS4Nj
-----END PRIVATE KEY-----
"""

# The same as OTHER_KEY; the password is "test".
ENCRYPTED_KEY = """\
-----BEGIN ENCRYPTED PRIVATE KEY-----
MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAgwvYvRNlEqNQICCAAw
DAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEEIbmYFH1RBSC7/xBuKmDnFwEgZD4
vszuSNQ2wkzeT96vWMbqY4NFuyCqEruOppao3NMh+xkaKTtF0iX6ILW5FsUmnlUl
+blinrRJo3yqcKxCf0xfqaetI/c6LD7UKLO5i3NqGsWstha6Dt9pp39EDpBemGnC
Y7MSXZxbfHxxDYMlzhvm0oP/iLSPrHhwg+etULr0T6eM88jMinrInw3syL224fU=
-----END ENCRYPTED PRIVATE KEY-----
"""


def trusting_context(file: Path) -> ssl.SSLContext:
    """Write the key and the certificate into a file; return the context of a client."""
    file.write_text(SELF_SIGNED)
    context = ssl.create_default_context(cadata=SELF_SIGNED)
    context.check_hostname = False
    return context
