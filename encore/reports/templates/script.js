'use strict';
(() => {
  const root = document.documentElement;
  const dark = matchMedia('(prefers-color-scheme: dark)');
  const toggle = document.querySelector('[data-theme-toggle]');
  const isDark = () => (root.dataset.theme ? root.dataset.theme === 'dark' : dark.matches);
  const show = () => toggle.setAttribute('aria-pressed', String(isDark()));
  toggle.hidden = false;
  toggle.addEventListener('click', () => {
    root.dataset.theme = isDark() ? 'light' : 'dark';
    show();
  });
  dark.addEventListener('change', show);
  show();

  // A cell without a value comes last, whichever way a table is sorted.
  const compare = (a, b, sign) => {
    if (a === '' || b === '') return (a === '') - (b === '');
    const [x, y] = [Number(a), Number(b)];
    const areNumbers = !Number.isNaN(x) && !Number.isNaN(y);
    return sign * (areNumbers ? x - y : a.localeCompare(b));
  };

  for (const table of document.querySelectorAll('table[data-sortable]')) {
    const headings = [...table.tHead.rows[0].cells];
    const body = table.tBodies[0];
    const announcement = document.querySelector('[data-sorted]');
    headings.forEach((heading, column) => {
      const button = heading.querySelector('button');
      button.addEventListener('click', () => {
        const order = heading.ariaSort === 'ascending' ? 'descending' : 'ascending';
        for (const cell of headings) cell.ariaSort = cell === heading ? order : 'none';
        const sign = order === 'ascending' ? 1 : -1;
        const value = (row) => row.cells[column].dataset.value;
        const rows = [...body.rows].sort((a, b) => compare(value(a), value(b), sign));
        body.append(...rows);
        announcement.textContent = `Sorted by ${button.textContent.trim()}, ${order}.`;
      });
    });
  }

  // Names under the mouse, at their places in the pictures.
  for (const place of document.querySelectorAll('.hint-at')) {
    place.style.left = `${place.dataset.left}%`;
    place.style.top = `${place.dataset.top}%`;
  }

  // A hint above a table or picture that is wider than the page.
  const hint = () => {
    for (const box of document.querySelectorAll('.scroll, .sideways')) {
      box.previousElementSibling.hidden = box.scrollWidth <= box.clientWidth + 8;
    }
  };
  addEventListener('resize', hint);
  document.addEventListener('toggle', hint, true);
  hint();
})();
