"""The local web page of jobs: `regroup ui` and `kubectl trainingjob ui`.

`static/uplot.js` is uPlot 1.6.32 (MIT): it draws thousands of points from columns, needs nothing
else, and sets no style that the page's Content-Security-Policy forbids.
"""
