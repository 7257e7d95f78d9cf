#include "trireme/checkpoint/internal/torch_save.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <optional>

#include "trireme/base/error.h"
#include "trireme/base/printable.h"
#include "trireme/base/zip_members.h"
#include "trireme/checkpoint/internal/dtype.h"
#include "trireme/checkpoint/internal/pickle.h"
#include "trireme/checkpoint/internal/tensor_bytes.h"

namespace trireme::checkpoint {
namespace {

using Kind = PickleValue::Kind;
using Sizes = std::vector<std::int64_t>;

constexpr std::size_t kMaxDims = 64;
constexpr std::uint64_t kFreeBytes = std::uint64_t{1} << 20;

/// The records of an archive by name, without the folder that contains all of them.
class TorchArchive {
 public:
  explicit TorchArchive(const std::filesystem::path& path)
      : stream_(path, std::ios::binary), size_(static_cast<std::int64_t>(std::filesystem::file_size(path))) {
    const auto is_code = [](std::string_view member) { return member.find("/code/") != member.npos; };
    for (ZipMember& member : zip_members({.name = "the archive",
                             .size = size_,
                             .read = [&](auto at, auto bytes) { return read(at, bytes); },
                             .leave_out = is_code})) {
      member.name.erase(0, member.name.find('/') + 1);
      std::string name = member.name;
      if (!records_.try_emplace(std::move(name), std::move(member)).second)
        throw DataError("its archive has two records of one name");
    }
  }

  std::uint64_t file_bytes() const { return static_cast<std::uint64_t>(size_); }
  const ZipMember* find(const std::string& name) const {
    const auto found = records_.find(name);
    return found == records_.end() ? nullptr : &found->second;
  }
  const ZipMember& at(const std::string& name) const {
    const ZipMember* record = find(name);
    if (record == nullptr) throw DataError(text("its archive has no record '", printable(name), "'"));
    return *record;
  }
  std::string read(std::int64_t offset, std::int64_t bytes) {
    std::string content(static_cast<std::size_t>(bytes), '\0');
    read(offset, content.data(), bytes);
    return content;
  }
  void read(std::int64_t offset, char* target, std::int64_t bytes) {
    if (!stream_.seekg(offset).read(target, bytes)) throw DataError("it cannot be read, or is cut short");
  }

 private:
  std::ifstream stream_;
  const std::int64_t size_;
  std::map<std::string, ZipMember> records_;
};

std::optional<at::ScalarType> type_of_storage(std::string_view name) {
  struct Row {
    std::string_view name;
    at::ScalarType type;
  };
  static constexpr std::array<Row, 12> kRows = {{{"DoubleStorage", at::kDouble},
                                                 {"FloatStorage", at::kFloat},
                                                 {"HalfStorage", at::kHalf},
                                                 {"BFloat16Storage", at::kBFloat16},
                                                 {"LongStorage", at::kLong},
                                                 {"IntStorage", at::kInt},
                                                 {"ShortStorage", at::kShort},
                                                 {"CharStorage", at::kChar},
                                                 {"ByteStorage", at::kByte},
                                                 {"BoolStorage", at::kBool},
                                                 {"ComplexFloatStorage", at::kComplexFloat},
                                                 {"ComplexDoubleStorage", at::kComplexDouble}}};
  const auto* row = std::ranges::find(kRows, name, &Row::name);
  return row == kRows.end() ? std::nullopt : std::optional(row->type);
}

/// Checks sizes, strides and offset of a tensor in a storage of `elements`. Throws DataError for an
/// impossible tensor; returns its number of elements.
std::int64_t check_extent(const Sizes& sizes, const Sizes& strides, std::int64_t offset,
                          std::int64_t elements) {
  if (sizes.size() != strides.size() || sizes.size() > kMaxDims)
    throw DataError(text("it has ", sizes.size(), " sizes and ", strides.size(),
                         " strides; expected as many of each, at most ", kMaxDims));
  const auto negative = [](std::int64_t number) { return number < 0; };
  if (offset < 0 || std::ranges::any_of(sizes, negative) || std::ranges::any_of(strides, negative))
    throw DataError("it has a negative size, stride or offset");
  std::int64_t count = 1, last = offset;
  bool overflows = false;
  for (std::size_t dim = 0; dim < sizes.size(); ++dim) {
    if (sizes[dim] == 0) continue;
    std::int64_t step = 0;
    overflows = overflows || __builtin_mul_overflow(count, sizes[dim], &count) ||
                __builtin_mul_overflow(sizes[dim] - 1, strides[dim], &step) ||
                __builtin_add_overflow(last, step, &last);
  }
  const bool is_empty = std::ranges::find(sizes, 0) != sizes.end();
  if (overflows || (is_empty ? offset > elements : last >= elements))
    throw DataError(text("it ends beyond its storage of ", elements, " elements"));
  return is_empty ? 0 : count;
}

/// Tensors from the calls that represent them in a pickle.
class TorchTensors {
 public:
  TorchTensors(const Pickle& pickle, TorchArchive& archive) : pickle_(pickle), archive_(archive) {}

  /// The call that rebuilds a tensor, possibly inside that of a parameter; null: another value.
  const PickleValue* rebuild_call(PickleIndex index) const {
    const PickleValue* call = call_of(index, "_rebuild_tensor_v2");
    const PickleValue* parameter = call_of(index, "_rebuild_parameter");
    if (parameter != nullptr && !arguments_of(*parameter).empty())
      call = call_of(arguments_of(*parameter)[0], "_rebuild_tensor_v2");
    return call;
  }

  /// Throws DataError with the reason only.
  at::Tensor tensor(const PickleValue& call) {
    const std::vector<PickleIndex>& arguments = arguments_of(call);
    if (arguments.size() < 4) throw DataError("its arguments are not those of a tensor");
    const at::Tensor& values = storage(arguments[0]);
    const std::int64_t offset = whole(arguments[1]);
    const Sizes sizes = wholes(arguments[2]), strides = wholes(arguments[3]);
    const std::int64_t elements = check_extent(sizes, strides, offset, values.numel());
    const std::uint64_t most = std::max(kMaxExpansion * archive_.file_bytes(), kFreeBytes);
    if (static_cast<std::uint64_t>(elements) > (most - tensor_bytes_) / values.element_size())
      throw DataError(text("with it the tensors have more than ", most, " bytes, and the file has ",
                           archive_.file_bytes()));
    tensor_bytes_ += static_cast<std::uint64_t>(elements) * values.element_size();
    return values.as_strided(sizes, strides, offset);
  }

 private:
  const PickleValue* call_of(PickleIndex index, std::string_view function) const {
    const PickleValue& value = pickle_[index];
    const bool is_it =
        value.kind == Kind::kCall && pickle_[value.items[0]].is_global("torch._utils", function);
    return is_it ? &value : nullptr;
  }
  const std::vector<PickleIndex>& arguments_of(const PickleValue& call) const {
    return pickle_[call.items[1]].items;
  }

  std::int64_t whole(PickleIndex index) const {
    if (pickle_[index].kind != Kind::kInt)
      throw DataError(text("it has ", describe(pickle_, index), " where an int is expected"));
    return pickle_[index].number;
  }
  Sizes wholes(PickleIndex index) const {
    const PickleValue& tuple = pickle_[index];
    if (tuple.kind != Kind::kTuple || tuple.items.size() > kMaxDims)
      throw DataError(text("it has ", describe(pickle_, index), " where a tuple of at most ", kMaxDims,
                           " sizes is expected"));
    Sizes numbers;
    for (const PickleIndex item : tuple.items) numbers.push_back(whole(item));
    return numbers;
  }

  /// ('storage', torch.FloatStorage, '0', 'cpu', 6)
  const at::Tensor& storage(PickleIndex index) {
    const PickleValue& outside = pickle_[index];
    const PickleValue* id = outside.kind == Kind::kPersistent ? &pickle_[outside.items[0]] : nullptr;
    if (id == nullptr || id->kind != Kind::kTuple || id->items.size() != 5 ||
        pickle_[id->items[2]].kind != Kind::kText)
      throw DataError(text("it has ", describe(pickle_, index), " where a storage is expected"));
    const PickleValue& global = pickle_[id->items[1]];
    const auto type =
        global.kind == Kind::kGlobal && global.words == "torch" ? type_of_storage(global.name) : std::nullopt;
    if (!type) throw DataError(text("it has a storage of unknown type: ", describe(pickle_, id->items[1])));
    const std::int64_t elements = whole(id->items[4]);
    const std::string key(pickle_[id->items[2]].words.substr(0, kMaxKeyBytes));
    const auto [place, is_new] = storages_.try_emplace(key);
    if (is_new) place->second = read_storage(archive_.at("data/" + key), *type, elements);
    if (place->second.scalar_type() != *type || place->second.numel() != elements)
      throw DataError(
          text("its storage '", printable(key), "' has another type or size elsewhere in the file"));
    return place->second;
  }

  at::Tensor read_storage(const ZipMember& record, at::ScalarType type, std::int64_t elements) {
    std::int64_t bytes = 0;
    if (elements < 0 ||
        __builtin_mul_overflow(elements, static_cast<std::int64_t>(c10::elementSize(type)), &bytes) ||
        bytes > record.size)
      throw DataError(text("its storage '", printable(record.name), "' of ", record.size,
                           " bytes cannot hold ", elements, " elements of type ", c10::toString(type)));
    if (static_cast<std::uint64_t>(bytes) > archive_.file_bytes() - storage_bytes_)
      throw DataError("its storages overlap each other in the file");
    storage_bytes_ += static_cast<std::uint64_t>(bytes);
    at::Tensor values = at::empty({elements}, type);
    archive_.read(record.offset, static_cast<char*>(values.mutable_data_ptr()), bytes);
    if (type == at::kBool && first_not_bool(tensor_bytes(values)))
      throw DataError(
          text("its storage '", printable(record.name), "' of bools holds numbers other than 0 and 1"));
    return values;
  }

  static constexpr std::size_t kMaxKeyBytes = 256;

  const Pickle& pickle_;
  TorchArchive& archive_;
  std::map<std::string, at::Tensor> storages_;
  std::uint64_t storage_bytes_ = 0, tensor_bytes_ = 0;
};

/// libtorch's pickler wraps a dict in a call that gives its type.
PickleIndex without_type(const Pickle& pickle) {
  PickleIndex root = pickle.root;
  for (;;) {
    const PickleValue& value = pickle[root];
    if (value.kind != Kind::kCall ||
        !pickle[value.items[0]].is_global("torch.jit._pickle", "restore_type_tag"))
      return root;
    const std::vector<PickleIndex>& arguments = pickle[value.items[1]].items;
    if (arguments.empty()) return root;
    root = arguments[0];
  }
}

std::string read_pickle(TorchArchive& archive) {
  if (const ZipMember* order = archive.find("byteorder"); order != nullptr) {
    const std::string found = archive.read(order->offset, std::min<std::int64_t>(order->size, 16));
    if (found != "little")
      throw DataError(text("its numbers are in the byte order '", printable(found), "'; expected 'little'"));
  }
  const ZipMember& record = archive.at("data.pkl");
  if (record.size > static_cast<std::int64_t>(kMaxPickleBytes))
    throw DataError(text("its pickle has ", record.size, " bytes; at most ", kMaxPickleBytes, " are read"));
  return archive.read(record.offset, record.size);
}

/// Throws DataError that names the tensor.
at::Tensor tensor_of(TorchTensors& tensors, const PickleValue& call, const std::string& shown) {
  try {
    at::Tensor tensor = tensors.tensor(call);
    dtype_name(tensor.scalar_type(), shown);
    return tensor;
  } catch (const Error& reason) {
    throw DataError(text("the tensor '", shown, "' cannot be read: ", reason.what()));
  }
}

TensorMap tensors_in(const Pickle& pickle, TorchArchive& archive) {
  TorchTensors tensors(pickle, archive);
  const PickleIndex root = without_type(pickle);
  if (tensors.rebuild_call(root) != nullptr) throw DataError("found a tensor");
  const PickleValue& dict = pickle[root];
  if (dict.kind != Kind::kDict) throw DataError(text("found ", describe(pickle, root)));
  TensorMap result;
  for (std::size_t i = 0; i + 1 < dict.items.size(); i += 2) {
    const PickleValue& key = pickle[dict.items[i]];
    if (key.kind != Kind::kText)
      throw DataError(text("found ", describe(pickle, dict.items[i]), " as a key"));
    const std::string shown = printable(key.words);
    const PickleValue* call = tensors.rebuild_call(dict.items[i + 1]);
    if (call == nullptr)
      throw DataError(text("found ", describe(pickle, dict.items[i + 1]), " under '", shown, "'"));
    if (!result.emplace(key.words, tensor_of(tensors, *call, shown)).second)
      throw DataError(text("found the key '", shown, "' twice"));
  }
  return result;
}

/// The modules of a pickle. They may contain each other in any way, so a search follows one path of names.
class ModuleTree {
 public:
  explicit ModuleTree(const Pickle& pickle) : pickle_(pickle) {}

  /// The value at a path such as "layer.0.weight"; nullopt: there is none.
  std::optional<PickleIndex> find(std::string_view path) {
    PickleIndex at = pickle_.root;
    while (true) {
      const std::size_t dot = path.find('.');
      const Attributes& attributes = attributes_of(at);
      const auto found = attributes.find(path.substr(0, dot));
      if (found == attributes.end()) return std::nullopt;
      at = found->second;
      if (dot == std::string_view::npos) return at;
      path.remove_prefix(dot + 1);
    }
  }

 private:
  using Attributes = std::map<std::string_view, PickleIndex>;

  const Attributes& attributes_of(PickleIndex index) {
    const auto [place, is_new] = known_.try_emplace(index);
    const PickleValue& object = pickle_[index];
    if (!is_new || object.kind != Kind::kObject || object.items.empty()) return place->second;
    const PickleValue& state = pickle_[object.items[0]];
    for (std::size_t i = 0; state.kind == Kind::kDict && i + 1 < state.items.size(); i += 2) {
      const PickleValue& key = pickle_[state.items[i]];
      if (key.kind == Kind::kText) place->second.emplace(key.words, state.items[i + 1]);
    }
    return place->second;
  }

  const Pickle& pickle_;
  std::map<PickleIndex, Attributes> known_;
};

/// Reads an archive; errors name the file.
template <class Read>
auto read_archive(const std::filesystem::path& path, std::string_view expected, const Read& read) {
  try {
    TorchArchive archive(path);
    return read(archive);
  } catch (const DataError& error) {
    throw DataError(text(path.string(), ": ", error.what(), "; expected ", expected));
  } catch (const std::filesystem::filesystem_error& error) {
    throw DataError(text("cannot open ", path.string(), ": ", error.code().message()));
  }
}

}  // namespace

TensorMap load_torch_save(const std::filesystem::path& path, std::string_view expected) {
  return read_archive(path, expected, [](TorchArchive& archive) {
    const std::string bytes = read_pickle(archive);
    return tensors_in(parse_pickle(bytes), archive);
  });
}

bool is_module_archive(const std::filesystem::path& path) {
  return read_archive(path, "an archive of tensors",
                      [](TorchArchive& archive) { return archive.find("constants.pkl") != nullptr; });
}

TensorMap load_module_archive(const std::filesystem::path& path, std::span<const std::string> names) {
  return read_archive(path, "what torch::save(module, FILE) writes", [&](TorchArchive& archive) {
    const std::string bytes = read_pickle(archive);
    const Pickle pickle = parse_pickle(bytes);
    if (pickle[pickle.root].kind != Kind::kObject)
      throw DataError(text("found ", describe(pickle, pickle.root)));
    TorchTensors tensors(pickle, archive);
    ModuleTree modules(pickle);
    TensorMap result;
    for (const std::string& name : names) {
      const std::optional<PickleIndex> index = modules.find(name);
      const PickleValue* call = index ? tensors.rebuild_call(*index) : nullptr;
      if (call != nullptr) result.emplace(name, tensor_of(tensors, *call, printable(name)));
    }
    return result;
  });
}

}  // namespace trireme::checkpoint
