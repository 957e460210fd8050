"""Sample the device and the host in a background thread; measure energy and pauses."""
