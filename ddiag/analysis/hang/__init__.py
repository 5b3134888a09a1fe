"""Who or what keeps a job from going on: matching of calls over ranks, and the graph of who waits for whom."""
