"""The machine: memory, threads, processors and system calls, as kernels and Python use them.

checks             checks of the debug build, and flags and locks between threads
memory_access      numbers at any address, hashes of bytes, hints to the processor
checksums          CRC32C of blocks of 4 KiB
threads            POSIX threads for kernels
background_thread  Python threads that survive an interrupt at any moment
free_memory        how much memory the process may still use
"""
