/* Numbers and structures are those of NVIDIA's nvtxTypes.h and nvToolsExt.h, written down once more
 * from those headers, so that this is an opinion of its own. */
#include "listener.h"

#include <pthread.h>
#include <string.h>

enum { EXPORT_CALLBACKS = 1, EXPORT_VERSION = 3 };
enum { MODULE_CORE = 1, MODULE_CORE2 = 5, MODULE_SYNC = 6, MODULES = 7 };
enum { CORE_MARK_A = 2, CORE_START_A = 5, CORE_END = 7, CORE_PUSH_A = 9, CORE_POP = 11 };
enum { CORE2_PUSH_EX = 4, CORE2_POP = 5, CORE2_CREATE_A = 12 };

typedef void (*any_function)(void);

typedef struct callbacks {
    size_t struct_size;
    int (*get_module)(unsigned module, any_function ***table, unsigned *size);
} callbacks;

typedef struct version_info {
    size_t struct_size;
    uint32_t version, reserved;
    void (*set_version)(uint32_t version);
} version_info;

typedef struct event_attributes {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    uint64_t payload;
    int32_t message_type;
    const char *message;
} event_attributes;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static listener_view known;
static uint64_t last_id = 1000;
static char domain;

static void note(event_kind kind, const char *message, uint64_t id)
{
    if (known.count == sizeof known.events / sizeof *known.events) {
        known.num_errors++;
        return;
    }
    told *const event = &known.events[known.count++];
    *event = (told){ .kind = kind, .id = id, .thread = (uintptr_t)pthread_self() };
    if (message != NULL)
        strncpy(event->message, message, sizeof event->message - 1);
}

static void note_locked(event_kind kind, const char *message, uint64_t id)
{
    pthread_mutex_lock(&lock);
    note(kind, message, id);
    pthread_mutex_unlock(&lock);
}

static void mark_a(const char *message)
{
    note_locked(EVENT_MARK, message, 0);
}

/* As a tool that does not count them. */
static int push_a(const char *message)
{
    note_locked(EVENT_PUSH, message, 0);
    return -2;
}

static int pop(void)
{
    note_locked(EVENT_POP, NULL, 0);
    return -2;
}

static uint64_t start_a(const char *message)
{
    pthread_mutex_lock(&lock);
    const uint64_t id = ++last_id;
    note(EVENT_START, message, id);
    pthread_mutex_unlock(&lock);
    return id;
}

static void end(uint64_t id)
{
    note_locked(EVENT_END, NULL, id);
}

static void *create_domain(const char *name)
{
    pthread_mutex_lock(&lock);
    known.num_errors += strcmp(name, "tcuda") != 0;
    pthread_mutex_unlock(&lock);
    return &domain;
}

static int push_ex(void *of, const event_attributes *attributes)
{
    pthread_mutex_lock(&lock);
    known.num_errors += of != &domain || attributes->version != 3 ||
        attributes->size != sizeof *attributes || attributes->message_type != 1;
    note(EVENT_OWN_PUSH, attributes->message, 0);
    pthread_mutex_unlock(&lock);
    return 0;
}

static int pop_of(void *of)
{
    pthread_mutex_lock(&lock);
    known.num_errors += of != &domain;
    note(EVENT_OWN_POP, NULL, 0);
    pthread_mutex_unlock(&lock);
    return 0;
}

/* As tools do, it takes whatever there is. */
static void put(any_function **table, unsigned size, unsigned place, any_function function)
{
    if (place < size && table[place] != NULL)
        *table[place] = function;
    else
        known.num_errors++;
}

/* NVTX's entry point. */
int InitializeInjectionNvtx2(const void *(*get_export)(uint32_t id));

int InitializeInjectionNvtx2(const void *(*get_export)(uint32_t id))
{
    static const unsigned sizes[MODULES] = { 0, 16, 9, 15, 7, 16, 7 };
    any_function **table = NULL;
    unsigned size = 0;
    const version_info *const version = get_export(EXPORT_VERSION);
    const callbacks *const callbacks = get_export(EXPORT_CALLBACKS);
    pthread_mutex_lock(&lock);
    known.num_tools++;
    known.num_errors += get_export(0) != NULL || get_export(77) != NULL;
    known.num_errors += version->struct_size != sizeof *version || version->version != 3;
    version->set_version(3);
    known.num_errors += callbacks->struct_size != sizeof *callbacks;
    known.num_errors += callbacks->get_module(0, &table, &size) != 0;
    known.num_errors += callbacks->get_module(MODULES, &table, &size) != 0;
    for (unsigned module = MODULE_CORE; module <= MODULE_SYNC; module++) {
        known.num_errors += callbacks->get_module(module, NULL, NULL) != 1;
        known.num_errors += callbacks->get_module(module, &table, &size) != 1;
        known.num_errors += size != sizes[module] || table[0] != NULL || table[size] != NULL;
    }
    (void)callbacks->get_module(MODULE_CORE, &table, &size);
    put(table, size, CORE_MARK_A, (any_function)mark_a);
    put(table, size, CORE_PUSH_A, (any_function)push_a);
    put(table, size, CORE_POP, (any_function)pop);
    put(table, size, CORE_START_A, (any_function)start_a);
    put(table, size, CORE_END, (any_function)end);
    (void)callbacks->get_module(MODULE_CORE2, &table, &size);
    put(table, size, CORE2_CREATE_A, (any_function)create_domain);
    put(table, size, CORE2_PUSH_EX, (any_function)push_ex);
    put(table, size, CORE2_POP, (any_function)pop_of);
    pthread_mutex_unlock(&lock);
    return 1;
}

/* For the tests. */
void listener_take(listener_view *view);

void listener_take(listener_view *view)
{
    pthread_mutex_lock(&lock);
    *view = known;
    known.count = 0;
    pthread_mutex_unlock(&lock);
}
