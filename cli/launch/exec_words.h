#pragma once
// Words as exec wants them.

#include <string>
#include <vector>

namespace trireme::cli {

/// Addresses of the words, which belong to `words`, and a null behind them.
inline std::vector<char*> exec_words(std::vector<std::string>& words) {
  std::vector<char*> result;
  for (auto& word : words) result.push_back(word.data());
  result.push_back(nullptr);
  return result;
}

}  // namespace trireme::cli
