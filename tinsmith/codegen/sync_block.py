"""The layout of the sync block: memory that a team's threads share, in generated code (`sync.py`)
and Python (`runtime/threads.py`).

By offset in bytes: 0 gate (i64: the number of the last job, the flag OPEN, and how many workers are
inside), 192 stop flag, 256 job function, 264 job argument; functions 320 wait, 328 post, 336 yield,
344 nap; 352 most spins, 356 most yields between jobs, 448 spins inside a job (i32 each). For thread
t: FLAGS + 64 t is 1 while it sleeps, SEMAPHORES + 64 t is its semaphore.
"""

from __future__ import annotations

NUMBER, OPEN, INSIDE = 1 << 32, 1 << 31, (1 << 31) - 1
"""Parts of the gate: what one job adds, the flag, and the mask of the workers inside."""
STOP, JOB, ARGUMENT = 192, 256, 264  # offsets in the sync block, in bytes; a cache line is 64
WAIT, POST, YIELD, NAP, SPINS, LINGER, PATIENCE = 320, 328, 336, 344, 352, 356, 448  # likewise
FLAGS, SEMAPHORES = 4096, 8192  # likewise; 64 bytes for each thread
MAX_THREADS = 64  # of a team
BLOCK_BYTES = SEMAPHORES + 64 * MAX_THREADS
