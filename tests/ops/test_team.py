"""Threads that share the parts of an operator (cpu/team.h), under ThreadSanitizer, with OpenMP's threads replaced.

Its results are exact, and it reports no race; if a wait is removed, it reports one.
"""

import os
import subprocess
from pathlib import Path

import pytest

from lightconv_plugin.ops import library

TEAM = library.SOURCES / "cpu" / "team.h"
THREADS = """
#pragma once
#include <thread>
#include <vector>

namespace torch::stable {
inline int64_t threads = 1;
inline int64_t get_num_threads() { return threads; }
template <class F>
void parallel_for(int64_t begin, int64_t end, int64_t, const F& f) {
  std::vector<std::thread> others;
  for (int64_t i = begin + 1; i < end; ++i) others.emplace_back([&f, i] { f(i, i + 1); });
  f(begin, begin + 1);
  for (std::thread& each : others) each.join();
}
}  // namespace torch::stable
"""
PROGRAM = """
#include <stdexcept>
#include <string>

#include "team.h"

// Adds i to number i in parts of many sizes, with a pause in which the other threads fall asleep.
bool adds_up(int parts) {
  std::vector<int64_t> sums(100), expected(100);
  lightconv::Team::lead([&] {
    for (int part = 0; part < parts; ++part) {
      const int64_t count = part * 37 % 101;
      lightconv::in_ranges(count, 1 + part % 9, [&](int64_t begin, int64_t end) {
        // all threads claim pieces of such a part, and finish at different times
        if (part % 10 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300 + 100 * (begin % 3)));
        for (int64_t i = begin; i < end; ++i) sums[i] += i;
      });
      for (int64_t i = 0; i < count; ++i) expected[i] += i;
      if (part % 50 == 49) std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  });
  return sums == expected;
}

bool keeps_the_error() {
  try {
    lightconv::Team::lead([] { throw std::runtime_error("an error"); });
  } catch (const std::runtime_error& error) {
    return std::string(error.what()) == "an error" && lightconv::Team::present() == nullptr;
  }
  return false;
}

int main() {
  for (const int64_t threads : {1, 2, 3}) {
    torch::stable::threads = threads;
    if (!adds_up(150) || !keeps_the_error()) return 1;
  }
}
"""


def run(folder: Path, source: str) -> subprocess.CompletedProcess[str]:
    """Compile the program with this source of team.h, and run it."""
    texts = {"team.h": source, "tensor.h": "#include <cstdint>\n" + THREADS, "program.cpp": PROGRAM}
    for name, text in texts.items():
        (folder / name).write_text(text)
    command = [library.compiler(), "-std=c++20", "-O1", "-fsanitize=thread", "program.cpp", "-o", "program", "-pthread"]
    subprocess.run(command, cwd=folder, check=True)
    environment = os.environ | {"TSAN_OPTIONS": "halt_on_error=1"}
    result = subprocess.run(
        ["./program"], cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    if "unexpected memory mapping" in result.stderr:
        pytest.skip("this compiler's ThreadSanitizer cannot run on this kernel")
    return result


def test_parts_are_exact_and_without_races(tmp_path):
    result = run(tmp_path, TEAM.read_text())
    assert (result.returncode, result.stderr) == (0, "")


def test_a_missing_wait_is_a_race(tmp_path):
    source, wait = (
        TEAM.read_text(),
        "    for (int64_t seen = finished_; seen < pieces; seen = finished_) wait(finished_, seen);\n",
    )
    assert wait in source
    result = run(tmp_path, source.replace(wait, ""))
    assert result.returncode != 0
