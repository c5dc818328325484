// What a run of the test says at its end, for people and as JSON.
#pragma once

#include "program.h"

#include <chrono>
#include <string>
#include <vector>

class Stopwatch {
public:
    double seconds() const
    {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }

private:
    std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
};

// One kind of programs.
struct Row {
    std::string name;
    long programs;
    Tally tally;
    double seconds;
    bool agrees;
};

class Table {
public:
    void add(Row row) { rows.push_back(std::move(row)); }
    bool agrees() const;
    void print(const Settings &settings) const;
    // False, with a sentence on stderr, where it cannot.
    bool write_json(const std::string &path, const Settings &settings) const;

private:
    std::vector<Row> rows;
};
