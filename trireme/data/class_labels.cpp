#include "trireme/data/class_labels.h"

#include <algorithm>
#include <limits>

#include "trireme/base/error.h"

namespace trireme::data {
namespace {

constexpr const char* kWaysOut =
    "set data.num_classes where there are classes without a sample, or data.target = \"number\" where the "
    "target is a number";

[[noreturn]] void reject(const LabelledSplit& split, std::int64_t label, const std::string& why) {
  throw DataError(text(split.name_of(split.labels.first_places().at(label)), " is of class ", label, why));
}

/// The split with the smallest label from `least` on, and that label; null: there is none.
struct FoundLabel {
  const LabelledSplit* split = nullptr;
  std::int64_t label = 0;
};

FoundLabel smallest_from(const std::vector<LabelledSplit>& splits, std::int64_t least) {
  FoundLabel found;
  for (const LabelledSplit& split : splits) {
    const auto place = split.labels.first_places().lower_bound(least);
    if (place == split.labels.first_places().end()) continue;
    if (found.split == nullptr || place->first < found.label)
      found = {.split = &split, .label = place->first};
  }
  return found;
}

/// Number of classes. Every class from 0 on has to occur.
std::int64_t dense_classes(const std::vector<LabelledSplit>& splits) {
  std::int64_t next = 0;
  FoundLabel found = smallest_from(splits, 0);
  for (; found.split != nullptr && found.label == next; ++next) found = smallest_from(splits, next + 1);
  if (found.split == nullptr) return next;
  if (next == 0) {
    reject(*found.split, found.label,
           text(", and no sample is of class 0: classes are numbered from 0 on; renumber them, ", kWaysOut));
  }
  reject(*found.split, found.label,
         text(", and no sample is of class ", next, ", though classes 0 to ", next - 1,
              " occur; correct the label, ", kWaysOut));
}

/// Rejects a column of ids or of numbers.
void check_repeated(const LabelledSplit& train) {
  constexpr std::int64_t kFew = 10;
  const auto classes = static_cast<std::int64_t>(train.labels.first_places().size());
  if (classes < train.labels.samples() || classes < kFew) return;
  reject(train, train.labels.first_places().rbegin()->first,
         text(", and each of the ", classes,
              " training samples is of a class of its own; name another column in data.targets, ", kWaysOut));
}

}  // namespace

void ClassLabels::add(std::int64_t label, std::int64_t place, std::int64_t count) {
  if (is_ignored(label)) return;
  samples_ += count;
  first_places_.try_emplace(label, place);
}

bool ClassLabels::is_ignored(std::int64_t label) const {
  return std::ranges::find(ignored_, label) != ignored_.end();
}

std::int64_t count_classes(const std::vector<LabelledSplit>& splits, std::int64_t given) {
  const FoundLabel smallest = smallest_from(splits, std::numeric_limits<std::int64_t>::min());
  if (smallest.split == nullptr) return given;
  if (smallest.label < 0) {
    reject(*smallest.split, smallest.label,
           ", and classes are numbered from 0 on; a label of no class is named in objective.ignored_classes");
  }
  if (given > 0) {
    const FoundLabel beyond = smallest_from(splits, given);
    if (beyond.split != nullptr)
      reject(*beyond.split, beyond.label, text(", and data.num_classes = ", given, " are 0 to ", given - 1));
    return given;
  }
  const std::int64_t classes = dense_classes(splits);
  check_repeated(splits.front());
  return classes;
}

}  // namespace trireme::data
