"""The errors that lightning-perf raises; each says what was received, what was expected and what to do."""


class PerfDoctorError(Exception):
    """Base of all errors of lightning-perf."""


class ConfigError(PerfDoctorError):
    """An argument or a flag cannot be used as given."""


class TraceError(PerfDoctorError):
    """A profiler trace cannot be read."""


class SessionError(PerfDoctorError):
    """A session file cannot be read or written."""


class TrialError(PerfDoctorError):
    """A trial cannot be planned or run."""


class TreatmentError(PerfDoctorError):
    """A treatment cannot be applied to this training; no part of it is applied."""
