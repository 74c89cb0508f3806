// a second file, so that flags can be seen to reach more than one
int answer() {
  return 42;
}
