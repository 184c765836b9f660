// Columns of a kernel's tables as numpy arrays that own them.
#pragma once

#include <pybind11/numpy.h>

#include <memory>
#include <utility>
#include <vector>

namespace memscope {

template <typename T>
pybind11::object to_array(std::vector<T>&& column) {
    auto owned = std::make_unique<std::vector<T>>(std::move(column));
    const std::vector<T>& values = *owned;
    const pybind11::capsule owner(owned.release(), [](void* pointer) { delete static_cast<std::vector<T>*>(pointer); });
    return pybind11::array_t<T>(static_cast<pybind11::ssize_t>(values.size()), values.data(), owner);
}

}  // namespace memscope
