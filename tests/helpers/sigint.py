"""Real SIGINTs, at random moments or on an event."""

import os
import random
import signal
import threading
import time


def send_interrupts(seed):
    """Fork a process that sends SIGINT to this one again and again; returns its id."""
    parent, child = os.getpid(), os.fork()
    if child:
        return child
    generator = random.Random(seed)
    while os.getppid() == parent:
        time.sleep(generator.choice([1e-5, 1e-4, 1e-3, 5e-3, 5e-2]) * generator.random())
        os.kill(parent, signal.SIGINT)
    os._exit(0)


def interrupt_when(event):
    """Send SIGINT to the main thread as soon as an event is set."""

    def wait():
        assert event.wait(30)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    threading.Thread(target=wait).start()
