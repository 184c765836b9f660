// Of the module _kernel: upstream's patterns of the blocks of a file, row by row (kernel/block_patterns.h).
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "kernel/api_order.h"
#include "kernel/block_patterns.h"
#include "module/columns.h"
#include "module/gil.h"
#include "module/kernel.h"

namespace py = pybind11;

namespace memscope {
namespace {

using kernel::ApiLife;
using kernel::ApiOrder;
using kernel::Family;

template <typename T>
using Values = py::array_t<T, py::array::c_style>;

struct Begun {
    ApiLife life;
    py::ssize_t row;
};

// Of the rows of one process in the order of their IDs: at each MALLOC the bits of what its block shows. pool: 0 where
// a row is of none that is judged; framework: aux of an operator; block: a number that names the block, 0 none.
std::vector<u8> patterns_of(const Values<u8>& kind, const Values<u8>& pool, const Values<u32>& framework,
                            const Values<u64>& block, u64 threshold) {
    const py::ssize_t rows = kind.size();
    if (pool.size() != rows || framework.size() != rows || block.size() != rows)
        throw py::value_error("columns of different lengths");
    const auto kinds = kind.unchecked<1>(), pools = pool.unchecked<1>();
    const auto frameworks = framework.unchecked<1>();
    const auto blocks = block.unchecked<1>();
    const GilReleased released;
    std::vector<u8> words(static_cast<std::size_t>(rows));
    ApiOrder order(ApiOrder::Rule::LETTER);
    std::unordered_map<u64, Begun> begun;
    for (py::ssize_t row = 0; row < rows; ++row) {
        const auto what = static_cast<Kind>(kinds(row));
        if (what == Kind::OP_START) order.start(0, frameworks(row));
        if (what == Kind::OP_END) order.end(0, frameworks(row));
        const Family family = kernel::family_of(kernel::PoolKey{0, 0, pools(row)});
        if (family == Family::COUNT) continue;
        if (what == Kind::MALLOC) {
            Begun& one = begun[blocks(row)];
            one = {};
            one.row = row;
            one.life.malloc_api = order.malloc(family, 0).api;
        } else if (what == Kind::ACCESS) {
            const u64 api = order.access(family, 0).api;
            if (const auto found = begun.find(blocks(row)); found != begun.end()) {
                found->second.life.access(api, order.last_free(family), threshold);
                words[static_cast<std::size_t>(found->second.row)] = found->second.life.words;
            }
        } else if (what == Kind::FREE) {
            const u64 api = order.free(family, 0).api;
            if (const auto found = begun.find(blocks(row)); found != begun.end()) {
                found->second.life.free(api, order.last_malloc(family));
                words[static_cast<std::size_t>(found->second.row)] = found->second.life.words;
                begun.erase(found);
            }
        }
    }
    return words;
}

}  // namespace

void bind_inefficient_rows(py::module_& module) {
    module.def(
        "inefficient_rows",
        [](const Values<u8>& kind, const Values<u8>& pool, const Values<u32>& framework, const Values<u64>& block,
           u64 threshold) { return to_array(patterns_of(kind, pool, framework, block, threshold)); },
        py::arg("kind"), py::arg("pool"), py::arg("framework"), py::arg("block"), py::arg("threshold"),
        "Of one process's rows, in the order of their IDs: at each MALLOC the bits of upstream's patterns.");
    py::dict patterns;
#define X(name, bit) patterns[#name] = bit;
    MEMSCOPE_PATTERNS(X)
#undef X
    module.attr("PATTERNS") = patterns;
    module.attr("IDLE_FIRST") = py::int_(kernel::kIdleFirst);
    module.attr("IDLE_THRESHOLD") = py::int_(kernel::kIdleThreshold);
}

}  // namespace memscope
