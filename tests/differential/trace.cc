// The traces of real programs as programs of this test.

#include "program.h"

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <unordered_map>
#include <utility>

namespace {

// Where the blocks of a trace are in the list of live ones, as a run keeps it: what is freed goes
// to the end first.
class Places {
public:
    void add(uint64_t id)
    {
        where[id] = ids.size();
        ids.push_back(id);
    }

    // Gives the place of a block, and takes it out.
    bool take(uint64_t id, size_t &place)
    {
        const auto found = where.find(id);
        if (found == where.end())
            return false;
        place = found->second;
        where[ids.back()] = place;
        std::swap(ids[place], ids.back());
        ids.pop_back();
        where.erase(id);
        return true;
    }

private:
    std::vector<uint64_t> ids;
    std::unordered_map<uint64_t, size_t> where;
};

} // namespace

std::vector<Operation> read_trace(const char *path)
{
    std::ifstream in(path);
    std::vector<Operation> program;
    Places places;
    for (std::string line; std::getline(in, line);) {
        if (line.empty() || line[0] == '#')
            continue;
        std::istringstream fields(line);
        Operation operation{Kind::free, 0, 0, 0, 0};
        char kind = 0;
        uint64_t id = 0;
        bool is_right = bool(fields >> kind >> id);
        if (is_right && kind == 'a') {
            operation.kind = Kind::allocate;
            is_right = fields >> operation.bytes >> operation.stream && operation.bytes > 0
                && operation.stream >= 0 && operation.stream < STREAMS;
            places.add(id);
        } else {
            is_right = is_right && kind == 'f' && places.take(id, operation.pick);
        }
        if (!is_right) {
            std::fprintf(stderr, "differential: %s: wrong line '%s'\n", path, line.c_str());
            std::exit(2);
        }
        program.push_back(operation);
    }
    if (program.empty()) {
        std::fprintf(stderr, "differential: %s: no trace\n", path);
        std::exit(2);
    }
    return program;
}
