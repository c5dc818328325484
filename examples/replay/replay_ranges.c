/* An ordered set of disjoint address ranges: a treap whose nodes are the slots of the trace.
 *
 * Priorities come from the slot number, so a run is the same every time; the expected depth is
 * logarithmic, whatever addresses the allocator hands out. */

#include "replay.h"

#include <stdlib.h>

static uint32_t priority(uint32_t slot)
{
    slot = (slot ^ (slot >> 16)) * 0x45D9F3BU;
    slot = (slot ^ (slot >> 16)) * 0x45D9F3BU;
    return slot ^ (slot >> 16);
}

/* Cuts a tree into the ranges that begin below `address` and the others. */
static void split(replay_range *nodes, uint32_t tree, uintptr_t address, uint32_t *below,
    uint32_t *above)
{
    while (tree != REPLAY_NO_SLOT) {
        if (nodes[tree].begin < address) {
            *below = tree;
            below = &nodes[tree].upper;
            tree = *below;
        } else {
            *above = tree;
            above = &nodes[tree].lower;
            tree = *above;
        }
    }
    *below = REPLAY_NO_SLOT;
    *above = REPLAY_NO_SLOT;
}

/* Joins two trees, all of `below` in front of all of `above`. */
static uint32_t join(replay_range *nodes, uint32_t below, uint32_t above)
{
    uint32_t root = REPLAY_NO_SLOT;
    uint32_t *link = &root;
    while (below != REPLAY_NO_SLOT && above != REPLAY_NO_SLOT) {
        if (priority(below) > priority(above)) {
            *link = below;
            link = &nodes[below].upper;
            below = *link;
        } else {
            *link = above;
            link = &nodes[above].lower;
            above = *link;
        }
    }
    *link = below != REPLAY_NO_SLOT ? below : above;
    return root;
}

bool replay_ranges_init(replay_ranges *ranges, uint32_t num_slots)
{
    ranges->root = REPLAY_NO_SLOT;
    ranges->nodes = malloc(num_slots * sizeof *ranges->nodes);
    return ranges->nodes != NULL;
}

void replay_ranges_free(replay_ranges *ranges)
{
    free(ranges->nodes);
    ranges->nodes = NULL;
    ranges->root = REPLAY_NO_SLOT;
}

/* A range that overlaps [begin, end): ranges are disjoint, so one path down finds it. */
static uint32_t find_overlap(const replay_ranges *ranges, uintptr_t begin, uintptr_t end)
{
    uint32_t tree = ranges->root;
    while (tree != REPLAY_NO_SLOT) {
        const replay_range *node = &ranges->nodes[tree];
        if (end <= node->begin)
            tree = node->lower;
        else if (begin >= node->end)
            tree = node->upper;
        else
            break;
    }
    return tree;
}

uint32_t replay_ranges_add(replay_ranges *ranges, uint32_t slot, uintptr_t begin, uintptr_t end)
{
    const uint32_t other = find_overlap(ranges, begin, end);
    if (other != REPLAY_NO_SLOT)
        return other;
    uint32_t below, above;
    split(ranges->nodes, ranges->root, begin, &below, &above);
    ranges->nodes[slot] = (replay_range){.begin = begin, .end = end, .lower = REPLAY_NO_SLOT,
        .upper = REPLAY_NO_SLOT};
    ranges->root = join(ranges->nodes, join(ranges->nodes, below, slot), above);
    return REPLAY_NO_SLOT;
}

void replay_ranges_remove(replay_ranges *ranges, uint32_t slot)
{
    const uintptr_t begin = ranges->nodes[slot].begin;
    uint32_t *link = &ranges->root;
    while (*link != slot) {
        replay_range *node = &ranges->nodes[*link];
        link = begin < node->begin ? &node->lower : &node->upper;
    }
    *link = join(ranges->nodes, ranges->nodes[slot].lower, ranges->nodes[slot].upper);
}
