/* A library of a process that takes static thread-local storage, as TCUDA does: BYTES of it. */
static __thread char own[BYTES] __attribute__((tls_model("initial-exec")));

char *neighbour_bytes(void);

char *neighbour_bytes(void)
{
    return own;
}
