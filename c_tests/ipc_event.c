/* Events of other processes. */
#define _POSIX_C_SOURCE 200809L

#include "ipc.h"

enum { MIB = 1 << 20 };

static const size_t bytes = 2 * MIB;

static tcuda_event *open_event(int line)
{
    tcuda_ipc_event_handle handle;
    tcuda_event *event = NULL;
    hear(line, &handle, sizeof handle);
    CHECK_OK(tcuda_event_from_ipc_handle(0, &handle, &event));
    CHECK(event != NULL);
    return event;
}

static void send_event(tcuda_event *event, int line)
{
    tcuda_ipc_event_handle handle;
    CHECK_OK(tcuda_event_ipc_handle(event, &handle));
    tell(line, &handle, sizeof handle);
}

/* ---- One process records, the other waits ---- */

static void waits_for_the_other(int line)
{
    tcuda_event *event = open_event(line);
    tcuda_stream *stream = create_stream(0);
    tcuda_event *own = create_event(0);
    tcuda_ipc_event_handle handle;
    CHECK(is_reached(event)); /* it was never recorded */
    CHECK_STATUS(TCUDA_STATUS_INVALID_STATE, tcuda_event_ipc_handle(event, &handle));
    nod(line);
    wait_for_nod(line);
    if (runs_late())
        CHECK(!is_reached(event));
    CHECK_OK(tcuda_event_wait(event, stream));
    CHECK_OK(tcuda_event_record(own, stream));
    if (runs_late())
        CHECK(!is_reached(own));
    nod(line);
    CHECK_OK(tcuda_event_synchronize(own));
    CHECK(is_reached(event));
    CHECK_OK(tcuda_event_synchronize(event));
    CHECK_OK(tcuda_event_destroy(event));
    CHECK_OK(tcuda_event_destroy(own));
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void one_records_the_other_waits(void)
{
    int line;
    gate held;
    const pid_t partner = start_partner(waits_for_the_other, &line);
    tcuda_event *event = create_event(TCUDA_EVENT_INTERPROCESS);
    tcuda_stream *stream = create_stream(0);
    int32_t device = -1;
    send_event(event, line);
    CHECK_OK(tcuda_event_device(event, &device));
    CHECK_EQ(device, 0);
    wait_for_nod(line);
    gate_close(&held, stream);
    CHECK_OK(tcuda_event_record(event, stream));
    nod(line);
    wait_for_nod(line);
    gate_open(&held);
    end_partner(partner, line);
    CHECK_OK(tcuda_event_destroy(event));
    CHECK_OK(tcuda_stream_destroy(stream));
    exit(finish());
}

/* ---- Two processes write one block in turns, ordered by events alone ---- */

enum { ROUNDS = 20 };

/* Reads what the other has written, adds one to each byte, and tells. */
static void take_turns(int line, unsigned char *block, tcuda_event *theirs, tcuda_event *ours,
    int first)
{
    tcuda_stream *stream = create_stream(0);
    for (int round = first; round < ROUNDS; round += 2) {
        if (round > 0) {
            wait_for_nod(line);
            CHECK_OK(tcuda_event_wait(theirs, stream));
            CHECK_EQ(count_other_bytes(block, round - 1, bytes, stream), 0);
        }
        fill_bytes(block, round, bytes, stream);
        CHECK_OK(tcuda_event_record(ours, stream));
        nod(line);
    }
    CHECK_OK(tcuda_stream_synchronize(stream));
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void takes_the_odd_turns(int line)
{
    tcuda_event *ours = create_event(TCUDA_EVENT_INTERPROCESS | TCUDA_EVENT_BLOCKING);
    send_event(ours, line);
    tcuda_event *theirs = open_event(line);
    const tcuda_ipc_handle handle = hear_handle(line);
    void *block = import_block(&handle, NULL, bytes);
    take_turns(line, block, theirs, ours, 1);
    wait_for_nod(line);
    CHECK_OK(tcuda_ipc_close(block, NULL));
    CHECK_OK(tcuda_event_destroy(theirs));
    nod(line);
    wait_for_nod(line);
    CHECK_OK(tcuda_event_destroy(ours));
}

static void events_order_two_processes(void)
{
    int line;
    const pid_t partner = start_partner(takes_the_odd_turns, &line);
    tcuda_event *ours = create_event(TCUDA_EVENT_INTERPROCESS);
    tcuda_event *theirs = open_event(line);
    send_event(ours, line);
    void *block = allocate(bytes, 0, NULL);
    const tcuda_ipc_handle handle = export_block(block, NULL);
    tell(line, &handle, sizeof handle);
    take_turns(line, block, theirs, ours, 0);
    wait_for_nod(line);
    CHECK_OK(tcuda_event_synchronize(theirs));
    CHECK_EQ(count_other_bytes(block, ROUNDS - 1, bytes, NULL), 0);
    nod(line);
    wait_for_nod(line);
    CHECK_OK(tcuda_event_destroy(theirs));
    nod(line);
    end_partner(partner, line);
    CHECK_OK(tcuda_event_destroy(ours));
    CHECK_OK(tcuda_free(block));
    exit(finish());
}

/* ---- Both may record it ---- */

static void records_the_others(int line)
{
    tcuda_event *event = open_event(line);
    tcuda_stream *stream = create_stream(0);
    CHECK_OK(tcuda_event_record(event, stream));
    CHECK_OK(tcuda_event_synchronize(event));
    nod(line);
    CHECK_OK(tcuda_event_destroy(event));
    CHECK_OK(tcuda_stream_destroy(stream));
}

static void the_other_may_record(void)
{
    int line;
    const pid_t partner = start_partner(records_the_others, &line);
    tcuda_event *event = create_event(TCUDA_EVENT_INTERPROCESS);
    send_event(event, line);
    wait_for_nod(line);
    CHECK(is_reached(event));
    CHECK_OK(tcuda_event_synchronize(event));
    end_partner(partner, line);
    CHECK_OK(tcuda_event_destroy(event));
    exit(finish());
}

/* ---- The end of a process ---- */

static void records_and_waits(int line)
{
    tcuda_event *event = create_event(TCUDA_EVENT_INTERPROCESS);
    CHECK_OK(tcuda_event_record(event, NULL));
    CHECK_OK(tcuda_event_synchronize(event));
    send_event(event, line);
    nod(line);
    for (;;)
        pause();
}

static void events_of_the_dead_hold_up_nobody(void)
{
    int line;
    tcuda_ipc_event_handle handle;
    tcuda_event *event = NULL, *late = NULL;
    const pid_t partner = start_partner(records_and_waits, &line);
    hear(line, &handle, sizeof handle);
    wait_for_nod(line);
    CHECK_OK(tcuda_event_from_ipc_handle(TCUDA_CURRENT_DEVICE, &handle, &event));
    kill_partner(partner, line);
    CHECK_OK(tcuda_event_wait(event, NULL));
    CHECK_OK(tcuda_device_synchronize(0));
    CHECK_OK(tcuda_event_destroy(event));
    if (on_simulator()) /* CUDA says nothing of handles that are stale */
        CHECK_STATUS(TCUDA_STATUS_CUDA_ERROR, tcuda_event_from_ipc_handle(0, &handle, &late));
    CHECK(late == NULL);
    exit(finish());
}

static void what_is_none_is_refused(void)
{
    tcuda_ipc_event_handle handle;
    tcuda_event *event = create_event(0), *opened = NULL;
    memset(&handle, 0, sizeof handle);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_event_ipc_handle(event, &handle));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_event_ipc_handle(event, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_HANDLE, tcuda_event_ipc_handle(NULL, &handle));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_event_from_ipc_handle(0, NULL, &opened));
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_event_from_ipc_handle(0, &handle, NULL));
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE,
        tcuda_event_from_ipc_handle(num_devices(), &handle, &opened));
    if (on_simulator())
        CHECK_STATUS(TCUDA_STATUS_CUDA_ERROR, tcuda_event_from_ipc_handle(0, &handle, &opened));
    CHECK(opened == NULL);
    CHECK_OK(tcuda_event_destroy(event));
    exit(finish());
}

int main(void)
{
    if (is_without_gpu())
        return CHECK_SKIPPED;
    CASE(one_records_the_other_waits);
    CASE(events_order_two_processes);
    CASE(the_other_may_record);
    CASE(events_of_the_dead_hold_up_nobody);
    CASE(what_is_none_is_refused);
    return finish_cases();
}
