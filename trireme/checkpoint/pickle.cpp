#include "trireme/checkpoint/internal/pickle.h"

#include <array>
#include <iomanip>
#include <limits>
#include <span>

#include "trireme/base/error.h"
#include "trireme/base/printable.h"

namespace trireme::checkpoint {
namespace {

using Kind = PickleValue::Kind;

constexpr PickleIndex kNoValue = std::numeric_limits<PickleIndex>::max();

/// Executes the opcodes of one pickle.
class PickleMachine {
 public:
  explicit PickleMachine(std::string_view bytes) : bytes_(bytes) {}

  Pickle run() {
    while (true) {
      const auto code = static_cast<unsigned char>(take(1)[0]);
      if (code == '.') break;
      if (!scalar(code) && !words(code) && !container(code) && !memory(code) && !object(code)) {
        throw DataError(text("it has the opcode 0x", std::hex, std::setw(2), std::setfill('0'), int{code},
                             std::dec, " at byte ", at_ - 1, ", which no file of tensors needs"));
      }
    }
    pickle_.root = pop();
    return std::move(pickle_);
  }

 private:
  std::string_view take(std::uint64_t size) {
    if (size > bytes_.size() - at_) throw DataError("its pickle is cut short");
    const std::string_view taken = bytes_.substr(at_, static_cast<std::size_t>(size));
    at_ += static_cast<std::size_t>(size);
    return taken;
  }
  /// A little-endian number of up to 8 bytes.
  std::uint64_t count(std::size_t size) {
    std::uint64_t value = 0;
    const std::string_view taken = take(size);
    for (std::size_t i = size; i-- > 0;) value = value << 8 | static_cast<unsigned char>(taken[i]);
    return value;
  }
  std::string_view line() {
    const std::size_t end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) throw DataError("its pickle is cut short");
    const std::string_view taken = take(end - at_);
    take(1);
    return taken;
  }

  void push(PickleValue&& value) {
    if (pickle_.values.size() == kMaxPickleValues)
      throw DataError(text("its pickle has more than ", kMaxPickleValues, " values"));
    stack_.push_back(static_cast<PickleIndex>(pickle_.values.size()));
    pickle_.values.push_back(std::move(value));
  }
  void push_again(PickleIndex index) {
    if (stack_.size() >= kMaxPickleValues)
      throw DataError(text("its pickle has more than ", kMaxPickleValues, " values at once"));
    stack_.push_back(index);
  }
  void push_number(Kind kind, std::int64_t number) {
    push({.kind = kind, .number = number, .words = {}, .name = {}});
  }
  void push_words(Kind kind, std::string_view words) { push({.kind = kind, .words = words, .name = {}}); }
  void push_items(Kind kind, std::vector<PickleIndex>&& items) {
    push({.kind = kind, .words = {}, .name = {}, .items = std::move(items)});
  }

  std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  PickleIndex top() const {
    if (stack_.size() <= floor()) throw DataError("its pickle takes more values than it has");
    return stack_.back();
  }
  PickleIndex pop() {
    const PickleIndex index = top();
    stack_.pop_back();
    return index;
  }
  std::vector<PickleIndex> pop_some(std::size_t number) {
    if (stack_.size() - floor() < number) throw DataError("its pickle takes more values than it has");
    const std::vector<PickleIndex> taken(stack_.end() - static_cast<std::ptrdiff_t>(number), stack_.end());
    stack_.resize(stack_.size() - number);
    return taken;
  }
  std::vector<PickleIndex> pop_to_mark() {
    if (marks_.empty()) throw DataError("its pickle takes more values than it has");
    std::vector<PickleIndex> taken = pop_some(stack_.size() - marks_.back());
    marks_.pop_back();
    return taken;
  }

  bool scalar(unsigned char code) {
    switch (code) {
      case 'N':
        return push_number(Kind::kNone, 0), true;
      case 0x88:
      case 0x89:
        return push_number(Kind::kBool, code == 0x88 ? 1 : 0), true;
      case 'K':
        return push_number(Kind::kInt, static_cast<std::int64_t>(count(1))), true;
      case 'M':
        return push_number(Kind::kInt, static_cast<std::int64_t>(count(2))), true;
      case 'J':
        return push_number(Kind::kInt, static_cast<std::int32_t>(count(4))), true;
      case 0x8a:
        return push_long(), true;
      case 'G':
        take(8);
        return push_number(Kind::kFloat, 0), true;
      case 0x80:
        if (count(1) > 5) throw DataError("its pickle is of a protocol above 5");
        return true;
      case 0x95:
        take(8);  // the size of a frame
        return true;
      default:
        return false;
    }
  }

  /// A two's complement number of up to 8 bytes.
  void push_long() {
    const std::uint64_t size = count(1);
    if (size > 8) throw DataError("its pickle has a whole number beyond 64 bits");
    std::uint64_t value = count(static_cast<std::size_t>(size));
    const std::uint64_t bits = 8 * size;
    if (bits > 0 && bits < 64 && (value >> (bits - 1) & 1) != 0) value |= ~std::uint64_t{0} << bits;
    push_number(Kind::kInt, static_cast<std::int64_t>(value));
  }

  bool words(unsigned char code) {
    switch (code) {
      case 'X':
        return push_words(Kind::kText, take(count(4))), true;
      case 0x8c:
      case 'U':
        return push_words(Kind::kText, take(count(1))), true;
      case 'T':
        return push_words(Kind::kText, take(count(4))), true;
      case 0x8d:
        return push_words(Kind::kText, take(count(8))), true;
      case 'C':
        return push_words(Kind::kBytes, take(count(1))), true;
      case 'B':
        return push_words(Kind::kBytes, take(count(4))), true;
      case 0x8e:
        return push_words(Kind::kBytes, take(count(8))), true;
      default:
        return false;
    }
  }

  bool container(unsigned char code) {
    switch (code) {
      case '(':
        if (marks_.size() == kMaxPickleValues) throw DataError("its pickle nests too deeply");
        return marks_.push_back(stack_.size()), true;
      case ')':
        return push_items(Kind::kTuple, {}), true;
      case 't':
        return push_items(Kind::kTuple, pop_to_mark()), true;
      case 0x85:
      case 0x86:
      case 0x87:
        return push_items(Kind::kTuple, pop_some(code - std::size_t{0x84})), true;
      case ']':
        return push_items(Kind::kList, {}), true;
      case '}':
        return push_items(Kind::kDict, {}), true;
      case 'a':
        return extend(Kind::kList, pop_some(1)), true;
      case 'e':
        return extend(Kind::kList, pop_to_mark()), true;
      case 's':
        return extend(Kind::kDict, pop_some(2)), true;
      case 'u':
        return extend(Kind::kDict, pop_to_mark()), true;
      default:
        return false;
    }
  }

  void extend(Kind kind, const std::vector<PickleIndex>& items) {
    PickleValue& value = pickle_.values[top()];
    if (value.kind != kind || (kind == Kind::kDict && items.size() % 2 != 0))
      throw DataError(text("its pickle puts items into ", describe(pickle_, top())));
    value.items.insert(value.items.end(), items.begin(), items.end());
  }

  bool memory(unsigned char code) {
    switch (code) {
      case 'q':
        return remember(count(1)), true;
      case 'r':
        return remember(count(4)), true;
      case 0x94:
        return remember(memo_.size()), true;
      case 'h':
        return push_again(remembered(count(1))), true;
      case 'j':
        return push_again(remembered(count(4))), true;
      case '0':
        return pop(), true;
      case '1':
        return pop_to_mark(), true;
      case '2':
        return push_again(top()), true;
      default:
        return false;
    }
  }

  void remember(std::uint64_t place) {
    if (place >= kMaxPickleValues)
      throw DataError(text("its pickle keeps more than ", kMaxPickleValues, " values"));
    if (place >= memo_.size()) memo_.resize(static_cast<std::size_t>(place) + 1, kNoValue);
    memo_[static_cast<std::size_t>(place)] = top();
  }
  PickleIndex remembered(std::uint64_t place) const {
    if (place >= memo_.size() || memo_[static_cast<std::size_t>(place)] == kNoValue)
      throw DataError("its pickle names a value that it has not kept");
    return memo_[static_cast<std::size_t>(place)];
  }

  bool object(unsigned char code) {
    switch (code) {
      case 'c': {
        const std::string_view module = line();
        return push({.kind = Kind::kGlobal, .words = module, .name = line()}), true;
      }
      case 0x93: {
        const std::vector<PickleIndex> names = pop_some(2);
        const PickleValue &module = pickle_[names[0]], &name = pickle_[names[1]];
        if (module.kind != Kind::kText || name.kind != Kind::kText)
          throw DataError("its pickle has a class without a name");
        return push({.kind = Kind::kGlobal, .words = module.words, .name = name.words}), true;
      }
      case 'Q':
        return push_items(Kind::kPersistent, pop_some(1)), true;
      case 'R':
        return call(pop_some(2)), true;
      case 'b': {  // state of an object; an OrderedDict's state has no items
        const PickleIndex state = pop();
        PickleValue& value = pickle_.values[top()];
        if (value.kind == Kind::kObject && value.items.empty()) return value.items = {state}, true;
        if (value.kind == Kind::kDict) return true;
        throw DataError(text("it holds the state of ", describe(pickle_, top())));
      }
      case 0x81: {
        const PickleIndex type = pop_some(2)[0];
        if (pickle_[type].kind == Kind::kGlobal && pickle_[type].words.starts_with("__torch__"))
          return push_items(Kind::kObject, {}), true;
        throw DataError(text("it holds an object of ", describe(pickle_, type)));
      }
      default:
        return false;
    }
  }

  void call(std::vector<PickleIndex>&& items) {
    const PickleValue &function = pickle_[items[0]], &arguments = pickle_[items[1]];
    if (function.kind != Kind::kGlobal || arguments.kind != Kind::kTuple)
      throw DataError(text("its pickle calls ", describe(pickle_, items[0])));
    const bool is_dict = function.is_global("collections", "OrderedDict") && arguments.items.empty();
    if (is_dict)
      push_items(Kind::kDict, {});
    else
      push_items(Kind::kCall, std::move(items));
  }

  const std::string_view bytes_;
  std::size_t at_ = 0;
  Pickle pickle_;
  std::vector<PickleIndex> stack_, memo_;
  std::vector<std::size_t> marks_;
};

}  // namespace

Pickle parse_pickle(std::string_view bytes) {
  if (bytes.size() > kMaxPickleBytes)
    throw DataError(text("its pickle has ", bytes.size(), " bytes; at most ", kMaxPickleBytes, " are read"));
  return PickleMachine(bytes).run();
}

std::string describe(const Pickle& pickle, PickleIndex index) {
  constexpr std::array<const char*, 13> kNames = {
      "None",     "a bool", "an int", "a float", "a text", "bytes",
      "a tuple",  "a list", "a dict", "",        "",       "a value outside of the pickle",
      "an object"};
  const PickleValue& value = pickle[index];
  if (value.kind == Kind::kGlobal) return text(printable(value.words), '.', printable(value.name));
  if (value.kind == Kind::kCall) return text("a call of ", describe(pickle, value.items[0]));
  return kNames[static_cast<std::size_t>(value.kind)];
}

}  // namespace trireme::checkpoint
