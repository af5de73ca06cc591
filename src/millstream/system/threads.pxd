"""POSIX threads: `threads.h`, declared once."""

cdef extern from "threads.h" nogil:
    ctypedef struct pthread_t:
        pass
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    ctypedef struct sigset_t:
        pass
    void leave_signals "millstream_leave_signals"(sigset_t *before)
    void take_signals "millstream_take_signals"(const sigset_t *before)
    bint is_this_thread "millstream_is_this_thread"(pthread_t thread)
    int pthread_join(pthread_t thread, void **result)
    int pthread_detach(pthread_t thread)
    int pthread_mutex_init(pthread_mutex_t *mutex, void *attributes)
    int pthread_mutex_destroy(pthread_mutex_t *mutex)
    int pthread_mutex_lock(pthread_mutex_t *mutex)
    int pthread_mutex_unlock(pthread_mutex_t *mutex)
    int pthread_cond_destroy(pthread_cond_t *condition)
    int pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex)
    int pthread_cond_signal(pthread_cond_t *condition)
    int pthread_cond_broadcast(pthread_cond_t *condition)
    int start_thread "millstream_start_thread"(
        pthread_t *thread, void *(*run)(void *) noexcept nogil, void *argument
    )
    void enter_background "millstream_enter_background"(const char *name)
    int init_condition "millstream_init_condition"(pthread_cond_t *condition)
    void wait_briefly "millstream_wait_briefly"(
        pthread_cond_t *condition, pthread_mutex_t *mutex, int milliseconds
    )
    double seconds_now "millstream_seconds"()
