/* The structures are those of NVIDIA's nvToolsExtMem.h and nvtxExtTypes.h, written down once more
 * from those headers, so that this is an opinion of its own. */
#include "tool.h"

#include <pthread.h>
#include <string.h>

typedef struct module_group {
    size_t id, slot_count;
    intptr_t *slots;
} module_group;

typedef struct module_info {
    uint16_t nvtx_version, struct_size, module_id, compat_id;
    size_t group_count;
    module_group *groups;
    intptr_t (*get_export)(uint32_t id);
    const void *info;
} module_info;

typedef struct range_desc {
    size_t size;
    const void *ptr;
} range_desc;

typedef struct heap_desc {
    uint16_t compat_id, struct_size;
    uint32_t reserved, usage, type;
    size_t desc_size;
    const range_desc *desc;
    uint32_t category, message_type;
    const void *message;
} heap_desc;

typedef struct register_batch {
    uint16_t compat_id, struct_size;
    uint32_t type;
    void *heap;
    size_t count, desc_size;
    const range_desc *descs;
    void **handles;
} register_batch;

typedef struct unregister_batch {
    uint16_t compat_id, struct_size;
    uint32_t ref_type;
    size_t count, ref_size;
    const void *const *refs;
} unregister_batch;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static tool_view known;

static void error_if(int wrong)
{
    known.num_errors += wrong != 0;
}

static size_t place_of(const tool_range *ranges, size_t count, const void *ptr)
{
    size_t place = 0;
    while (place < count && ranges[place].address != (uintptr_t)ptr)
        place++;
    return place;
}

static void add(tool_range *ranges, size_t *count, const range_desc *desc)
{
    error_if(*count == 64 || desc->size == 0 || place_of(ranges, *count, desc->ptr) != *count);
    if (*count < 64)
        ranges[(*count)++] = (tool_range){ (uintptr_t)desc->ptr, desc->size };
}

static void drop(tool_range *ranges, size_t *count, const void *ptr)
{
    const size_t place = place_of(ranges, *count, ptr);
    error_if(place == *count);
    if (place < *count)
        ranges[place] = ranges[--*count];
}

static void *heap_register(const void *domain, const heap_desc *desc)
{
    pthread_mutex_lock(&lock);
    error_if(domain != NULL || desc->compat_id != 0x0102 || desc->struct_size != sizeof *desc);
    error_if(desc->usage != 1 || desc->type != 1 || desc->desc_size != sizeof *desc->desc);
    add(known.heaps, &known.num_heaps, desc->desc);
    void *const heap = (void *)(uintptr_t)desc->desc->ptr;
    pthread_mutex_unlock(&lock);
    return heap;
}

/* With a heap its regions go. */
static void heap_unregister(const void *domain, void *heap)
{
    pthread_mutex_lock(&lock);
    const size_t place = place_of(known.heaps, known.num_heaps, heap);
    error_if(domain != NULL);
    if (place < known.num_heaps) {
        const tool_range gone = known.heaps[place];
        for (size_t i = known.num_regions; i-- > 0;)
            if (known.regions[i].address - gone.address < gone.bytes)
                known.regions[i] = known.regions[--known.num_regions];
    }
    drop(known.heaps, &known.num_heaps, heap);
    pthread_mutex_unlock(&lock);
}

static void regions_register(const void *domain, const register_batch *batch)
{
    pthread_mutex_lock(&lock);
    error_if(domain != NULL || batch->compat_id != 0x0102 || batch->struct_size != sizeof *batch);
    error_if(batch->type != 1 || batch->desc_size != sizeof *batch->descs);
    error_if(place_of(known.heaps, known.num_heaps, batch->heap) == known.num_heaps);
    for (size_t i = 0; i < batch->count; i++)
        add(known.regions, &known.num_regions, &batch->descs[i]);
    pthread_mutex_unlock(&lock);
}

static void regions_unregister(const void *domain, const unregister_batch *batch)
{
    pthread_mutex_lock(&lock);
    error_if(domain != NULL || batch->compat_id != 0x0102 || batch->struct_size != sizeof *batch);
    error_if(batch->ref_type != 1 || batch->ref_size != sizeof *batch->refs);
    for (size_t i = 0; i < batch->count; i++)
        drop(known.regions, &known.num_regions, batch->refs[i]);
    pthread_mutex_unlock(&lock);
}

/* NVTX's entry point. */
int InitializeInjectionNvtxExtension(module_info *module);

int InitializeInjectionNvtxExtension(module_info *module)
{
    if (module->nvtx_version != 3 || module->struct_size != sizeof *module ||
        module->module_id != 1 || module->group_count != 1 || module->groups[0].id != 1 ||
        module->groups[0].slot_count < 13)
        return 0;
    intptr_t *const slots = module->groups[0].slots;
    slots[0] = (intptr_t)heap_register;
    slots[1] = (intptr_t)heap_unregister;
    slots[3] = (intptr_t)regions_register;
    slots[5] = (intptr_t)regions_unregister;
    return 1;
}

/* For the test. */
void tool_look(tool_view *view);

void tool_look(tool_view *view)
{
    pthread_mutex_lock(&lock);
    *view = known;
    pthread_mutex_unlock(&lock);
}
