"""Measurements that people run on their own machine. Ways of running a model are compared in one process, in turn, never one after all."""
