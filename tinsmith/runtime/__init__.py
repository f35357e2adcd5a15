"""Running a plan: nets, programs, sessions, threads, profiles."""
