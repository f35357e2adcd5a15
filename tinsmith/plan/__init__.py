"""A placed graph and its kernels -> Plan: order of steps, layouts, memory, packed weights."""
