#pragma once
// The labels of a data set's samples: which classes occur, and where each occurs first. From them follows
// the number of classes, which no single wrong label decides. Not thread-safe.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace trireme::data {

class ClassLabels {
 public:
  /// `ignored`: labels of no class, which are left out (objective.ignored_classes).
  explicit ClassLabels(std::vector<std::int64_t> ignored = {}) : ignored_(std::move(ignored)) {}

  /// A label of `count` samples, and the place of the first of them: a line, or the number of a sample.
  /// Places come in ascending order.
  void add(std::int64_t label, std::int64_t place, std::int64_t count = 1);
  bool is_ignored(std::int64_t label) const;

  /// The labels that were added, but for those that are ignored.
  std::int64_t samples() const { return samples_; }
  /// Each class with the place of its first sample.
  const std::map<std::int64_t, std::int64_t>& first_places() const { return first_places_; }

 private:
  std::vector<std::int64_t> ignored_;
  std::int64_t samples_ = 0;
  std::map<std::int64_t, std::int64_t> first_places_;
};

/// Labels of one split; `name_of` spells a place: "t.csv, line 7".
struct LabelledSplit {
  const ClassLabels& labels;
  std::function<std::string(std::int64_t place)> name_of;
};

/// The number of classes of all splits, the first of which is for training. `given` is data.num_classes; 0:
/// one more than the largest label, where every class from 0 on occurs. Throws DataError, which names the
/// sample: a label below 0; a label from `given` on; without `given`, a class that is missing below the
/// largest label, or a class of its own for each of ten training samples and more. No label: `given`.
std::int64_t count_classes(const std::vector<LabelledSplit>& splits, std::int64_t given);

}  // namespace trireme::data
