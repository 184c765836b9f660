// Columns of tables: numpy arrays of Python's that are read in place, and a kernel's as arrays that own them.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace memscope {

template <typename T>
using Column = pybind11::array_t<T, pybind11::array::c_style>;

// Of so many rows; -1: of any number. Nothing is made of another type or in other places: that would be a copy, and a
// number that does not fit another one.
template <typename T>
Column<T> column_of(const pybind11::dict& columns, const char* name, pybind11::ssize_t rows = -1) {
    const auto wrong = [name](const std::string& what) {
        return pybind11::value_error("column '" + std::string(name) + "' " + what);
    };
    if (!columns.contains(name)) throw wrong("is missing");
    const pybind11::object value = columns[name];
    if (!pybind11::isinstance<Column<T>>(value)) throw wrong("is no contiguous array of its type");
    auto column = pybind11::reinterpret_borrow<Column<T>>(value);
    if (column.ndim() != 1 || (rows != -1 && column.size() != rows))
        throw wrong("has not " + (rows == -1 ? "one dimension" : std::to_string(rows) + " values"));
    if (reinterpret_cast<std::uintptr_t>(column.data()) % alignof(T) != 0) throw wrong("is not aligned");
    return column;
}

template <typename T>
pybind11::object to_array(std::vector<T>&& column) {
    auto owned = std::make_unique<std::vector<T>>(std::move(column));
    const std::vector<T>& values = *owned;
    const pybind11::capsule owner(owned.release(), [](void* pointer) { delete static_cast<std::vector<T>*>(pointer); });
    return pybind11::array_t<T>(static_cast<pybind11::ssize_t>(values.size()), values.data(), owner);
}

}  // namespace memscope
