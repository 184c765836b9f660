// Tables whose entries stand in the files that they belong to, and nowhere else: the linker puts them side by side.
//
// All entries of a table lie in one section, named after it. Where a section's name is a C identifier, the linker
// defines __start_<name> and __stop_<name> around what it gathered (ld's manual, "Input Section Example"). So the table
// is whole before the first constructor runs, is never destroyed, and needs no allocation and no list of its entries.
// In which order they stand depends on the order of the files: nothing may depend on it.
#pragma once

// At namespace scope, once per table: gives `type* const* begin_of_<table>()` and `end_of_<table>()`.
#define MEMSCOPE_GATHERED(table, type)                                                       \
    extern "C" __attribute__((visibility("hidden"))) type* const __start_memscope_##table[]; \
    extern "C" __attribute__((visibility("hidden"))) type* const __stop_memscope_##table[];  \
    inline type* const* begin_of_##table() noexcept { return __start_memscope_##table; }     \
    inline type* const* end_of_##table() noexcept { return __stop_memscope_##table; }

// At namespace scope, in the file of the entry; `name` is one of this file alone.
#define MEMSCOPE_ENTER(table, type, name, entry) \
    __attribute__((used, section("memscope_" #table))) static type* const name = entry
