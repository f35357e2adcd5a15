"""Running a plan: Net, Program, Session, threads, profile, compiled files."""
