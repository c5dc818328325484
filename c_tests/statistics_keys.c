/* The keys of statistics: all of them listed, the name of older documents, and the nearest of an
 * unknown one. */
#include "support.h"

#include <stdlib.h>

/* The list, to be freed. */
static char *list_of(int32_t device)
{
    size_t len = 0, again = 0;
    CHECK_OK(tcuda_memory_stat_keys(device, NULL, 0, &len));
    char *const keys = malloc(len + 1);
    CHECK(keys != NULL);
    CHECK_OK(tcuda_memory_stat_keys(device, keys, len + 1, &again));
    CHECK(again == len && strlen(keys) == len);
    return keys;
}

/* Every key of the list has a value; how many there are, and whether one is among them. */
static int read_all(const char *wanted, bool *is_there)
{
    char *const keys = list_of(0);
    int count = 0;
    *is_there = false;
    for (char *key = strtok(keys, "\n"); key != NULL; key = strtok(NULL, "\n")) {
        uint64_t value = 0;
        CHECK_OK(tcuda_memory_stat(0, key, &value));
        *is_there = *is_there || strcmp(key, wanted) == 0;
        count++;
    }
    free(keys);
    return count;
}

enum { KEYS = 9 * 12 + 2 * 4 + 7 };

static void every_key_is_listed(void)
{
    bool is_there = false;
    CHECK_EQ(read_all("allocated_bytes.all.peak", &is_there), KEYS);
    CHECK(is_there);
    char cut[8] = "";
    size_t needed = 0;
    CHECK_OK(tcuda_memory_stat_keys(0, cut, sizeof cut, &needed));
    CHECK(strcmp(cut, "active.") == 0 && needed > 2000);
    CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_memory_stat_keys(0, NULL, 1, NULL));
}

static void private_pools_have_keys(void)
{
    tcuda_mem_pool *pool = NULL;
    uint64_t id0 = 0, id1 = 0, value = 0;
    char key[96];
    CHECK_OK(tcuda_mem_pool_create(NULL, 0, &pool));
    CHECK_OK(tcuda_mem_pool_id(pool, &id0, &id1));
    snprintf(key, sizeof key, "reserved_bytes_by_private_pools.%llu_%llu.all.current",
        (unsigned long long)id0, (unsigned long long)id1);
    CHECK_OK(tcuda_mem_pool_begin(pool, 0));
    void *const block = allocate(1000, 0, NULL);
    CHECK_OK(tcuda_mem_pool_end(pool, 0));
    bool is_there = false;
    CHECK_EQ(read_all(key, &is_there), KEYS + 12);
    CHECK(is_there);
    CHECK_OK(tcuda_memory_stat(0, key, &value));
    CHECK(value > 0);
    CHECK_OK(tcuda_free(block));
    CHECK_OK(tcuda_mem_pool_destroy(pool));
    CHECK_STATUS(TCUDA_STATUS_INVALID_DEVICE, tcuda_memory_stat_keys(99, NULL, 0, NULL));
}

/* "allocated" is "allocation" in the documents of torch.cuda.memory_stats. */
static void documented_names_are_known(void)
{
    static const char *const rest[] = { "all.current", "small_pool.peak", "large_pool.freed" };
    void *const block = allocate(1000, 0, NULL);
    CHECK_OK(tcuda_free(allocate(5 << 20, 0, NULL)));
    for (int i = 0; i < 3; i++) {
        char key[64];
        uint64_t documented = 0, real = 0;
        snprintf(key, sizeof key, "allocated.%s", rest[i]);
        CHECK_OK(tcuda_memory_stat(0, key, &documented));
        snprintf(key, sizeof key, "allocation.%s", rest[i]);
        CHECK_OK(tcuda_memory_stat(0, key, &real));
        CHECK(documented == real && real > 0);
    }
    CHECK_OK(tcuda_free(block));
}

static void the_nearest_is_named(void)
{
    static const char *const keys[][2] = {
        { "num_oom", "the nearest is \"num_ooms\"" },
        { "allocated_bytes.all.max", "the nearest is \"allocated_bytes.all.peak\"" },
        { "reserved.all.current", "the nearest is \"reserved_bytes.all.current\"" },
        { "reserved_bytes_by_private_pools.9_9.all.peak", "tcuda_memory_stat_keys lists all" },
        { "", "key is \"\", which no statistic has" },
    };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        uint64_t value = 42;
        CHECK_STATUS(TCUDA_STATUS_INVALID_ARGUMENT, tcuda_memory_stat(0, keys[i][0], &value));
        CHECK(strstr(tcuda_last_error(), keys[i][1]) != NULL);
        CHECK_EQ(value, 42);
    }
}

int main(void)
{
    SKIP_WITHOUT_GPU();
    every_key_is_listed(); /* also before initialisation */
    CHECK_OK(tcuda_init());
    every_key_is_listed();
    documented_names_are_known();
    private_pools_have_keys();
    the_nearest_is_named();
    return finish();
}
