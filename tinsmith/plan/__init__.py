"""Graph + chosen kernels -> Plan: order, layouts, memory, packed weights."""
