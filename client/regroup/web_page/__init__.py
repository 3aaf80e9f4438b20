"""The local web page of jobs: `regroup ui` and `kubectl trainingjob ui`."""
