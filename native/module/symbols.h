// Names of functions, read from the symbol tables of an object's file.
//
// The tables are read in pieces and nothing is kept: libtorch_cpu.so has 300,000 symbols, and only the few that are
// asked for matter. Nothing is mapped, since a file that is cut short under a mapping would end the reader.
#pragma once

#include <string>
#include <vector>

#include "record/record.h"

namespace memscope {

struct Wanted {
    u64 offset;             // of the return address, from the beginning of the object
    std::string name = {};  // as in the symbol table; empty: there is none
};

// Fills in the names that the file at `path` has, and `build` (stack/object_headers.h). False: it is no object, or
// cannot be read. An address belongs to the function whose call ends there.
bool read_names(const std::string& path, u64& build, std::vector<Wanted>& wanted);

}  // namespace memscope
