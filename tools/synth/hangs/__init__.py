"""Jobs that hang, played until nothing moves, and the Flight Recorder dumps their ranks would leave."""
