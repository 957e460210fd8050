"""What all tests stand on."""

import signal

# A shell without job control starts what goes to the background with Ctrl-C ignored, and processes inherit that: the
# tests that press it would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)
