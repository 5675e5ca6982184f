"""The privacy mechanism that protects records by DP-SGD steps at clients."""
