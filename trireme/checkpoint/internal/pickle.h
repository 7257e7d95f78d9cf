#pragma once
// A pickle of Python as values, none of which is executed: calls and classes remain names. Values are in one
// row and refer to each other by number, so that no nesting of a file uses a thread's stack. Source:
// CPython's Lib/pickletools.py, protocols 0 to 5; opcodes that neither torch.save nor libtorch writes are
// errors. Immutable; thread-safe.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::checkpoint {

/// Limits of a pickle: 100000 tensors need about 15 MB and 2 million values.
inline constexpr std::size_t kMaxPickleBytes = std::size_t{32} << 20;
inline constexpr std::size_t kMaxPickleValues = 2'500'000;

/// The number of a value in its Pickle.
using PickleIndex = std::uint32_t;

/// One value of a pickle.
struct PickleValue {
  enum class Kind : std::uint8_t {
    kNone,
    kBool,
    kInt,
    kFloat,
    kText,
    kBytes,
    kTuple,
    kList,
    kDict,        ///< an OrderedDict, too
    kGlobal,      ///< a function or class
    kCall,        ///< of a global, with a tuple of arguments
    kPersistent,  ///< a value outside the pickle, by its id
    kObject,      ///< of a class of libtorch's modules
  };

  Kind kind = Kind::kNone;
  std::int64_t number = 0;  ///< of kBool and kInt
  std::string_view words;   ///< of kText and kBytes; the module of a kGlobal
  std::string_view name;    ///< of a kGlobal, without its module
  /// Of kTuple and kList the items; of kDict key, value, key, value; of kCall global and arguments; of
  /// kPersistent the id; of kObject its state, where it has one. Those of tuples, calls and ids are smaller
  /// than the number of the value itself.
  std::vector<PickleIndex> items = {};

  bool is_global(std::string_view module, std::string_view global) const {
    return kind == Kind::kGlobal && words == module && name == global;
  }
};

/// All values of a pickle. Views of its bytes, which must outlive it.
struct Pickle {
  std::deque<PickleValue> values;
  PickleIndex root = 0;

  const PickleValue& operator[](PickleIndex index) const { return values[index]; }
};

/// Time and memory are linear in the bytes and bounded by the limits above. Throws DataError with the reason
/// alone.
Pickle parse_pickle(std::string_view bytes);

/// "int", "a call of torch.nn.Linear" for messages.
std::string describe(const Pickle& pickle, PickleIndex index);

}  // namespace trireme::checkpoint
